"""The target alone, computed without the engine, and how tokens are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from app.results import GenerateResult

# Below this the best two logits of a float32 model are a tie: which one wins is rounding.
TIE_GAP = 1e-4


class TargetAlone:
    """Greedy decoding by transformers, one full forward a token: nothing is shared with the engine,
    neither the modelling code nor the cache."""

    def __init__(self, checkpoint: Path) -> None:
        load: Any = AutoModelForCausalLM.from_pretrained
        self._model = load(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
        self._texts: dict[tuple[int, ...], list[int]] = {}

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits `[vocab_size]` behind `token_ids`."""
        logits: torch.Tensor = self._model(torch.tensor([list(token_ids)])).logits[0, -1]
        return logits

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The first `num_tokens` tokens behind `prompt`, EOS or not."""
        text = self._texts.setdefault(tuple(prompt), [])
        while len(text) < num_tokens:
            text.append(int(self.logits([*prompt, *text]).argmax()))
        return text[:num_tokens]

    def top2_gap(self, token_ids: Sequence[int]) -> float:
        """How far the best logit behind `token_ids` is above the second best."""
        best = self.logits(token_ids).topk(2).values
        return float(best[0] - best[1])

    def assert_same(self, result: GenerateResult, num_tokens: int) -> None:
        """Require of a greedy result over a prompt of token ids what the target alone gives."""
        assert result.error is None, result.error
        prompt = [int(token) for token in result.prompt if isinstance(token, int)]
        self.assert_text(prompt, result.token_ids, num_tokens)

    def assert_text(self, prompt: Sequence[int], token_ids: Sequence[int], num_tokens: int) -> None:
        """Require `num_tokens` greedy tokens behind `prompt`."""
        expected = self.greedy(prompt, num_tokens)
        assert_same_tokens(
            token_ids, expected, lambda index: self.top2_gap([*prompt, *expected[:index]])
        )


def assert_same_tokens(
    actual: Sequence[int],
    expected: Sequence[int],
    top2_gap_at: Callable[[int], float],
    tie_gap: float = TIE_GAP,
) -> None:
    """Fail at the first difference unless the target's best two logits tie there.

    `top2_gap_at(index)` is asked at that place alone. Behind a tie the texts are different texts.
    """
    if list(actual) == list(expected):
        return
    pairs = zip(actual, expected, strict=False)
    index = next((i for i, (a, e) in enumerate(pairs) if a != e), min(len(actual), len(expected)))
    if index == len(actual) or index == len(expected):
        raise AssertionError(
            f"{len(actual)} tokens where the target alone gives {len(expected)}; "
            "the shorter text begins the longer one"
        )
    gap = top2_gap_at(index)
    if gap >= tie_gap:
        raise AssertionError(
            f"first difference at index {index}: got token {actual[index]}, the target alone gives "
            f"{expected[index]} with a top-2 logit gap of {gap:.6g}"
        )
