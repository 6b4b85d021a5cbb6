"""Chooses what one step runs: a prefill within the chunk budget, or a decode of all that can."""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduling.request import Request
from app.workers.batch import PrefillPiece


class PrefillPlanner:
    """Cuts prompts into pieces of at most `chunk_size` tokens a step; None runs each prompt in one
    piece, for backends that cannot continue behind cached tokens."""

    def __init__(self, chunk_size: int | None) -> None:
        self._chunk_size = chunk_size

    def plan(self, prefilling: Sequence[Request]) -> list[PrefillPiece]:
        """Pieces of one step, oldest request first. Unchunked, the first prompt always fits."""
        pieces: list[PrefillPiece] = []
        budget = self._chunk_size
        for request in prefilling:
            remaining = request.prefill_len - request.committed_len
            length = remaining if budget is None else min(remaining, budget)
            if length == 0:
                break
            end = request.committed_len + length
            samples = end == request.prefill_len and not request.has_output
            pieces.append(PrefillPiece(request, request.committed_len, end, samples))
            if budget is None:
                break
            budget -= length
        return pieces
