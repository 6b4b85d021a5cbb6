"""A request from admission to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from app.scheduling.stop_conditions import StopConditions
from app.workers.batch import DecodeState


class FinishReason(Enum):
    """stop: a stop token, stop string or EOS. length: the budget or the context is used up."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(slots=True, kw_only=True, eq=False)
class Request(DecodeState):
    """A `DecodeState` with what only the scheduler needs.

    `prefill_len`: tokens that prefill has to run; set when the request is (re-)admitted.
    `from_draft` has an entry for each output token: whether a draft proposed it.
    """

    stop: StopConditions
    prefill_len: int = 0
    allocated_len: int = 0
    finish_reason: FinishReason | None = None
    from_draft: list[bool] = field(default_factory=list)
    # What broke the step that this request was part of.
    failure: BaseException | None = None
    submitted_at: float = 0.0
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def is_prefilling(self) -> bool:
        return self.committed_len < self.prefill_len

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def output_since(self, start: int) -> tuple[list[int], list[bool]]:
        """Output tokens from the `start`-th on, and which of them a draft proposed."""
        return self.token_ids[self.num_prompt_tokens + start :], self.from_draft[start:]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens
