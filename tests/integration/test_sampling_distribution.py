"""Sampled texts have the target's distribution, whatever drafts and however it is verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import app.workers.accept
from app.config.sampling_params import SamplingParams
from app.results import GenerateResult
from app.speculative.sampling import sample_from_probs
from app.speculative.verify import VerifyResult, chain_rejection_accept
from app.testing.checkpoints import write_checkpoint
from app.testing.drafts import write_unrelated_draft
from tests.integration.engines import accepted, ngram, open_tiny, standalone
from tests.integration.exact_distribution import (
    Text,
    conditional,
    marginal,
    next_token_probs,
    p_value,
    text_probs,
)
from tests.integration.oracle import TargetAlone

PROMPT = [3, 7, 5]
# A fourth token is sampled, so that a verify gives the third: the last one is decoded plainly.
NUM_COUNTED, NUM_SAMPLED = 3, 4
BATCH_SIZE = 48
NUM_REQUESTS = 1000
# Seeds are fixed: a fault shows as far less, and no run fails by chance.
MIN_P_VALUE = 1e-3

SAMPLING: dict[str, dict[str, float]] = {
    "plain": {"temperature": 1.0},
    "temperature": {"temperature": 0.6},
    "top_k": {"temperature": 1.2, "top_k": 4},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.15},
    "all": {"temperature": 1.4, "top_k": 7, "top_p": 0.9, "min_p": 0.05},
}
RULES = ("alone", "chain", "tree", "ngram", "rejection", "block")
# Under the default rule a draft changes nothing at all (test_seeds.py): a few cases stand for it.
SELECTION = [
    *((rule, sampling) for rule in ("rejection", "block") for sampling in SAMPLING),
    *((rule, "all") for rule in ("alone", "chain", "tree", "ngram")),
    ("alone", "plain"),
]


@dataclass(frozen=True)
class TinyVocabulary:
    """Models over ten tokens, so that all texts can be enumerated."""

    target: Path
    draft: Path
    alone: TargetAlone

    def settings(self, rule: str) -> dict[str, object]:
        if rule == "alone":
            return {}
        if rule == "ngram":
            return ngram(num_draft_tokens=5)
        if rule == "tree":
            return standalone(self.draft, num_steps=3, topk=3)
        chain = standalone(self.draft, num_steps=3)
        return {
            **chain,
            "speculative_use_rejection_sampling": rule == "rejection",
            "speculative_use_block_verification": rule == "block",
        }

    def sample(
        self, rule: str, params: SamplingParams, num_requests: int, prompt: Sequence[int] = PROMPT
    ) -> list[GenerateResult]:
        """`num_requests` texts, decoded in batches by one engine."""
        results: list[GenerateResult] = []
        with open_tiny(
            self.target,
            self.settings(rule),
            max_running_requests=BATCH_SIZE,
            max_total_tokens=BATCH_SIZE * 16,
        ) as engine:
            while len(results) < num_requests:
                results += engine.generate([prompt] * BATCH_SIZE, params)
        return results


@pytest.fixture(scope="module")
def tiny_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> TinyVocabulary:
    root = tmp_path_factory.mktemp("tiny-vocabulary")
    target = write_checkpoint(
        root / "target",
        num_layers=1,
        vocab_size=10,
        hidden_size=16,
        num_heads=2,
        num_kv_heads=1,
        logit_std=1.2,
        seed=1,
    )
    draft = write_unrelated_draft(target, root / "draft")
    return TinyVocabulary(target, draft, TargetAlone(target))


def params_of(sampling: str) -> SamplingParams:
    return SamplingParams(max_new_tokens=NUM_SAMPLED, ignore_eos=True, **SAMPLING[sampling])


def count(results: Sequence[GenerateResult]) -> Counter[Text]:
    return Counter(result.token_ids[:NUM_COUNTED] for result in results)


def assert_distributed(counts: Mapping[Text, float], probs: Mapping[Text, float]) -> None:
    """First token, first two, all three, and the second token behind the likeliest first ones."""
    for length in range(1, NUM_COUNTED + 1):
        value = p_value(marginal(counts, length), marginal(probs, length))
        assert value > MIN_P_VALUE, f"the first {length} tokens: p = {value:.3g}"
    firsts = marginal(probs, 1)
    for (first,) in sorted(firsts, key=firsts.__getitem__, reverse=True)[:2]:
        behind = conditional(probs, first)
        total = sum(behind.values())
        second_probs = {text: probability / total for text, probability in behind.items()}
        value = p_value(conditional(counts, first), second_probs)
        assert value > MIN_P_VALUE, f"the token behind {first}: p = {value:.3g}"


def check(models: TinyVocabulary, rule: str, sampling: str, num_requests: int) -> None:
    params = params_of(sampling)
    results = models.sample(rule, params, num_requests)
    assert_distributed(count(results), text_probs(models.alone, PROMPT, params, NUM_COUNTED))
    if rule != "alone":
        assert accepted(results) > 0, "the run tested nothing: no draft token was accepted"


@pytest.mark.parametrize(("rule", "sampling"), SELECTION)
def test_texts_are_distributed_as_the_target_alone_gives_them(
    tiny_vocabulary: TinyVocabulary, rule: str, sampling: str
) -> None:
    check(tiny_vocabulary, rule, sampling, num_requests=NUM_REQUESTS)


@pytest.mark.full
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("rule", RULES)
def test_many_texts_are_distributed_as_the_target_alone_gives_them(
    tiny_vocabulary: TinyVocabulary, rule: str, sampling: str
) -> None:
    check(tiny_vocabulary, rule, sampling, num_requests=10_000)


def test_block_verification_accepts_at_least_as_much_as_rejection(
    tiny_vocabulary: TinyVocabulary,
) -> None:
    params = SamplingParams(temperature=1.0, max_new_tokens=20, ignore_eos=True)
    by_rejection, by_block = (
        accepted(tiny_vocabulary.sample(rule, params, 4 * BATCH_SIZE))
        for rule in ("rejection", "block")
    )
    assert by_block > by_rejection


def test_a_rule_that_forgets_the_residual_is_found(
    tiny_vocabulary: TinyVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_residual(
        draft_tokens: torch.Tensor,
        q: torch.Tensor,
        p: torch.Tensor,
        coins: torch.Tensor,
        final_coins: torch.Tensor,
    ) -> VerifyResult:
        result = chain_rejection_accept(draft_tokens, q, p, coins, final_coins)
        last = result.num_correct[:, None]
        row = p[torch.arange(p.shape[0]), result.num_correct]
        bonus = sample_from_probs(row, final_coins)[:, None]
        return replace(result, predict=result.predict.scatter(1, last, bonus))

    monkeypatch.setattr(app.workers.accept, "chain_rejection_accept", without_residual)
    with pytest.raises(AssertionError, match="p = "):
        check(tiny_vocabulary, "rejection", "plain", num_requests=NUM_REQUESTS)


def test_a_temperature_that_is_ignored_is_found(tiny_vocabulary: TinyVocabulary) -> None:
    asked = SamplingParams(temperature=0.8, max_new_tokens=NUM_SAMPLED, ignore_eos=True)
    results = tiny_vocabulary.sample("chain", params_of("plain"), NUM_REQUESTS)
    probs = text_probs(tiny_vocabulary.alone, PROMPT, asked, NUM_COUNTED)
    with pytest.raises(AssertionError, match="p = "):
        assert_distributed(count(results), probs)


def test_the_exact_probabilities_are_right_where_they_can_be_computed_by_hand() -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    params = SamplingParams(temperature=1.0, top_k=3, top_p=0.7, min_p=0.8)
    # top-k: 2/9, 3/9, 4/9; top-p: 3/7, 4/7; min-p 0.8 * 4/7 > 3/7.
    assert next_token_probs(logits, params).tolist() == [0, 0, 0, 1]
    params = SamplingParams(temperature=1.0, top_k=3, top_p=0.7)
    assert next_token_probs(logits, params).tolist() == pytest.approx([0, 0, 3 / 7, 4 / 7])
