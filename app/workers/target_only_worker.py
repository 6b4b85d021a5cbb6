"""Decoding without a draft, behind the same interface."""

from __future__ import annotations

from collections.abc import Sequence

from app.workers.base import BaseSpecWorker
from app.workers.batch import DecodeState
from app.workers.proposal import Proposal


class TargetOnlyWorker(BaseSpecWorker):
    """One token a step: no algorithm, zero steps, or `--no-spec`."""

    @property
    def num_window_slots(self) -> int:
        return 1

    def can_draft(self, state: DecodeState) -> bool:
        return False

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        return None
