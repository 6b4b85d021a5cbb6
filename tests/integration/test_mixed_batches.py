"""A greedy request says the same beside sampled ones, ties included, and from its first token."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.sampling_params import SamplingParams
from app.testing.drafts import write_noisy_draft
from tests.integration.engines import (
    VOCAB_SIZE,
    TinyModels,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone
from tests.integration.rewriting import HEAD, Tensors, rewrite

NUM_TOKENS = 24
PROMPTS = [random_prompt(length, seed=length) for length in (2, 5, 9, 14)]
SAMPLED = [
    SamplingParams(temperature=1.0, max_new_tokens=19, ignore_eos=True),
    SamplingParams(temperature=1.5, top_k=5, max_new_tokens=31, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.8, max_new_tokens=24, ignore_eos=True),
    SamplingParams(temperature=2.0, min_p=0.1, max_new_tokens=27, ignore_eos=True),
]


def speculations(draft: Path) -> dict[str, dict[str, object]]:
    chain = standalone(draft, num_steps=3)
    return {
        "none": {},
        "chain": chain,
        "tree": standalone(draft, num_steps=3, topk=2),
        "rejection": {**chain, "speculative_use_rejection_sampling": True},
        "block": {**chain, "speculative_use_block_verification": True},
        "thresholds": {**chain, "speculative_accept_threshold_single": 0.9},
        "ngram": ngram(),
    }


SPECULATIONS = list(speculations(Path("draft")))


@pytest.mark.parametrize("name", SPECULATIONS)
def test_a_greedy_request_is_not_changed_by_sampled_neighbours(
    tiny: TinyModels, target_alone: TargetAlone, name: str
) -> None:
    # Greedy and sampled ones take turns.
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    params = [each for other in SAMPLED for each in (greedy(NUM_TOKENS), other)]
    with open_tiny(tiny.target, speculations(tiny.noisy)[name]) as engine:
        results = engine.generate(prompts, params)
    for result in results[::2]:
        target_alone.assert_same(result, NUM_TOKENS)
    for result, other in zip(results[1::2], SAMPLED, strict=True):
        assert result.completion_tokens == other.max_new_tokens


@pytest.fixture(scope="module")
def tied_target(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each id of the upper half has the logit of an id of the lower half, but another embedding:
    ties at every token, and whoever breaks one differently goes on with another text."""

    def tie_halves(tensors: Tensors) -> None:
        head = tensors[HEAD]
        head[VOCAB_SIZE // 2 :] = head[: VOCAB_SIZE // 2]

    return rewrite(tiny.target, tmp_path_factory.mktemp("tied") / "target", tie_halves)


@pytest.mark.parametrize("name", SPECULATIONS)
def test_ties_are_broken_alike_alone_and_in_a_batch(
    tied_target: Path, tmp_path: Path, name: str
) -> None:
    draft = write_noisy_draft(tied_target, tmp_path / "draft")
    with open_tiny(tied_target) as engine:
        alone = [
            result.token_ids
            for prompt in PROMPTS
            for result in engine.generate([prompt], greedy(NUM_TOKENS))
        ]
    params = [each for other in SAMPLED for each in (greedy(NUM_TOKENS), other)]
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    with open_tiny(tied_target, speculations(draft)[name]) as engine:
        together = [result.token_ids for result in engine.generate(prompts, params)[::2]]
    assert together == alone
    half = VOCAB_SIZE // 2
    assert all(token < half for text in alone for token in text), "the lowest id wins a tie"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_first_proposed_token_is_verified(tiny: TinyModels, temperature: float) -> None:
    # One step of a draft that is nearly always wrong: committing it unverified shows at once.
    params = SamplingParams(
        temperature=temperature, seed=11, max_new_tokens=NUM_TOKENS, ignore_eos=True
    )
    with open_tiny(tiny.target) as engine:
        alone = engine.generate(PROMPTS, params)
    with open_tiny(tiny.target, standalone(tiny.unrelated, num_steps=1)) as engine:
        drafted = engine.generate(PROMPTS, params)
    assert [result.token_ids for result in drafted] == [result.token_ids for result in alone]
    assert all(result.spec is not None and result.spec.proposed > 0 for result in drafted)
