"""What the scheduler hands to a worker for one step, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.config.sampling_params import SamplingParams
from app.speculative.metrics import SpecMetrics


@dataclass(slots=True, kw_only=True, eq=False)
class DecodeState:
    """The part of a request that workers read.

    `token_ids` holds prompt and output. While decoding its last token is the bonus token: emitted,
    but without a key and value in the cache yet, so `len(token_ids) == committed_len + 1`.
    `draft_len` counts the leading tokens whose keys and values in the *draft's* pool are exact; the
    worker owns it.
    """

    request_id: int = -1  # given at submission
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    # token_ids never grows beyond this: prompt + max_new_tokens, within the context.
    max_len: int
    row: int = -1
    committed_len: int = 0
    draft_len: int = 0
    metrics: SpecMetrics = field(default_factory=SpecMetrics)

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_len - len(self.token_ids)

    @property
    def has_output(self) -> bool:
        return len(self.token_ids) > self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Prompt tokens `start .. end-1` of one request; the last piece of a prompt samples a token.

    A request that was preempted recomputes its tokens but keeps the bonus it had: `samples` is then
    false.
    """

    state: DecodeState
    start: int
    end: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: either prefill pieces or requests that decode, never both."""

    prefill: Sequence[PrefillPiece] = ()
    decode: Sequence[DecodeState] = ()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Tokens of one request: `token_ids` in order; the first `num_from_draft` were proposed by the
    draft and accepted, the rest came from the target. `num_proposed` counts tree nodes without the
    root; None when nothing was verified (prefill, or a step without a draft)."""

    state: DecodeState
    token_ids: list[int]
    num_from_draft: int = 0
    num_proposed: int | None = None
