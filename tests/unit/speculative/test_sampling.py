from __future__ import annotations

import pytest
import torch

from app.config.sampling_params import SamplingParams
from app.speculative.random_draws import DrawDomain, hash_uniform
from app.speculative.sampling import (
    SamplingBatch,
    draft_sample,
    sample_from_probs,
    sample_tokens,
    target_probs,
)

GREEDY = SamplingParams()
TRANSFORMS = {
    "temperature": SamplingParams(temperature=0.7),
    "top_k": SamplingParams(temperature=1.0, top_k=3),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
    "all": SamplingParams(temperature=1.5, top_k=6, top_p=0.9, min_p=0.1),
    "one token": SamplingParams(temperature=1.0, top_p=1e-6),
    "off": SamplingParams(temperature=1.0, top_k=10_000, top_p=1.0, min_p=0.0),
}


def batch_of(*params: SamplingParams) -> SamplingBatch:
    return SamplingBatch.from_params([(row, 100 + index) for index, row in enumerate(params)])


def reference_probs(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """One row, token by token, in float64."""
    if params.is_greedy:
        probs = torch.zeros(logits.shape[0], dtype=torch.float64)
        probs[logits.tolist().index(max(logits.tolist()))] = 1.0
        return probs
    probs = (logits.double() / params.temperature).softmax(0)
    order = sorted(range(len(probs)), key=lambda token: (-float(probs[token]), token))
    kept = set(order[: params.top_k] if params.top_k > 0 else order)
    mass, nucleus = 0.0, set()
    total = sum(float(probs[token]) for token in kept)
    for token in order:
        if token in kept and mass < params.top_p * total:
            mass += float(probs[token])
            nucleus.add(token)
    floor = params.min_p * float(probs.max())
    survivors = [token for token in nucleus if float(probs[token]) >= floor]
    cut = torch.zeros_like(probs)
    cut[survivors] = probs[survivors]
    return cut / cut.sum()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_equal_reference_in_a_mixed_batch(name: str) -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 4, 11) * 2
    before = logits.clone()
    params = [TRANSFORMS[name], GREEDY, TRANSFORMS["all"]]
    probs = target_probs(logits, batch_of(*params))
    assert torch.equal(logits, before)
    for row, row_params in enumerate(params):
        for place in range(4):
            expected = reference_probs(logits[row, place], row_params)
            assert torch.allclose(probs[row, place].double(), expected, atol=1e-6)
            assert torch.equal(probs[row, place] > 0, expected > 0)


def test_greedy_rows_are_one_hot_at_the_lowest_tied_id_whatever_the_batch() -> None:
    logits = torch.tensor([[[1.0, 3.0, 3.0, 2.0, 3.0]]])
    alone = target_probs(logits, batch_of(GREEDY))
    assert alone.tolist() == [[[0.0, 1.0, 0.0, 0.0, 0.0]]]
    mixed = batch_of(TRANSFORMS["all"], GREEDY, TRANSFORMS["temperature"])
    assert torch.equal(target_probs(logits.expand(3, 1, 5), mixed)[1:2], alone)
    tokens = sample_tokens(logits.expand(3, 1, 5), mixed, torch.zeros(3, 1, dtype=torch.int64))
    assert int(tokens[1, 0]) == 1


def test_tied_tokens_at_the_border_keep_exactly_k() -> None:
    logits = torch.zeros(1, 1, 8)
    logits[..., 5] = 1.0
    kept = target_probs(logits, batch_of(SamplingParams(temperature=1.0, top_k=3)))[0, 0] > 0
    assert kept.nonzero()[:, 0].tolist() == [0, 1, 5]


@pytest.mark.parametrize("size", [50, 2000, 9000])
def test_a_wide_nucleus_is_found(size: int) -> None:
    # A flat distribution: the nucleus is far wider than the partial sort.
    logits = torch.linspace(0.0, 0.1, size).view(1, 1, -1)
    params = SamplingParams(temperature=1.0, top_p=0.75)
    probs = target_probs(logits, batch_of(params))[0, 0]
    assert torch.equal(probs > 0, reference_probs(logits[0, 0], params) > 0)


def test_tiny_temperature_is_the_argmax_without_overflow() -> None:
    logits = torch.tensor([[[-50.0, 900.0, 899.0]]])
    probs = target_probs(logits, batch_of(SamplingParams(temperature=1e-30)))
    assert probs.tolist() == [[[0.0, 1.0, 0.0]]]


def test_rows_do_not_depend_on_the_batch() -> None:
    torch.manual_seed(2)
    logits = torch.randn(5, 2, 300)
    params = [*list(TRANSFORMS.values())[:4], GREEDY]
    batch = batch_of(*params)
    positions = torch.arange(10).view(5, 2)
    probs, tokens = target_probs(logits, batch), sample_tokens(logits, batch, positions)
    order = torch.tensor([3, 4, 0, 2, 1])
    shuffled = batch.select(order)
    assert torch.equal(target_probs(logits[order], shuffled), probs[order])
    assert torch.equal(sample_tokens(logits[order], shuffled, positions[order]), tokens[order])
    for row in range(5):
        alone = batch.select(torch.tensor([row]))
        assert torch.equal(target_probs(logits[row : row + 1], alone)[0], probs[row])
        one = sample_tokens(logits[row : row + 1], alone, positions[row : row + 1])
        assert torch.equal(one[0], tokens[row])
    assert batch.select(torch.tensor([4])).is_all_greedy


def test_seeds_and_positions_give_different_samples() -> None:
    params = SamplingParams(temperature=1.0)
    batch = SamplingBatch.from_params([(params, seed) for seed in range(20)])
    logits = torch.zeros(20, 30, 1000)
    tokens = sample_tokens(logits, batch, torch.arange(30).expand(20, 30))
    assert len({tuple(row) for row in tokens.tolist()}) == 20
    assert all(len(set(row)) > 20 for row in tokens.tolist())


def test_inverse_cdf_never_takes_a_token_without_mass() -> None:
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    coins = torch.tensor([0.0, 0.4999, 0.5, 1 - 2**-24])
    assert sample_from_probs(probs.expand(4, 5), coins).tolist() == [1, 1, 3, 3]
    # Any scale; the walk ends at the last token with mass.
    assert sample_from_probs(probs.expand(4, 5) * 1e-30, coins).tolist() == [1, 1, 3, 3]
    assert sample_from_probs(probs.expand(1, 5), torch.tensor([1.0])).tolist() == [3]


def chi_square_p_value(counts: torch.Tensor, probs: torch.Tensor) -> float:
    expected = probs.double() * counts.sum()
    assert int(counts[expected == 0].sum()) == 0
    counts, expected = counts[expected > 0].double(), expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))


def test_draft_samples_follow_their_distribution_and_ignore_the_acceptance_coins() -> None:
    num_trials = 100_000
    probs = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    seeds = torch.arange(num_trials)
    positions = torch.full((num_trials,), 17)
    steps = [draft_sample(probs.expand(num_trials, 5), seeds, positions, step) for step in (0, 1)]
    pairs = torch.bincount(steps[0] * 5 + steps[1], minlength=25)
    assert chi_square_p_value(pairs, torch.outer(probs, probs).flatten()) > 1e-4
    coins = hash_uniform(seeds, positions, torch.arange(1), DrawDomain.ACCEPT)[:, 0]
    joint = torch.bincount(steps[0] * 4 + (coins * 4).long(), minlength=20)
    expected = torch.outer(probs, torch.full((4,), 0.25)).flatten()
    assert chi_square_p_value(joint, expected) > 1e-4


def test_draft_samples_of_a_whole_vocabulary_stay_on_the_support() -> None:
    # Seed 197 draws a float32 zero for token 6885, which would win over any probability.
    seed, position = torch.tensor([197]), torch.tensor([0])
    columns = torch.arange(50_000)
    assert float(hash_uniform(seed, position, columns, DrawDomain.DRAFT).min()) == 0.0
    probs = torch.zeros(1, 50_000)
    probs[0, 123], probs[0, 6885] = 1.0, 1e-12
    assert draft_sample(probs, seed, position, 0).tolist() == [123]
