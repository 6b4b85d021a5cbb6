"""Colours the text of accepted draft tokens."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.results import StreamDelta
    from app.scheduling.detokenizer import IncrementalDetokenizer

DRAFT_COLOUR = "green"


class DraftColours:
    """Knows for each character of a streamed text whether a draft proposed it.

    A delta holds whole tokens but its text may lag behind them (an unfinished character, a possible
    stop string), so characters wait in a queue with the origin of their token.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer | None) -> None:
        self._detokenizer = detokenizer
        self._waiting: deque[bool] = deque()

    def paint(self, delta: StreamDelta) -> str:
        """The delta's text with terminal colours."""
        if self._detokenizer is None:
            return delta.text
        for token_id, is_draft in zip(delta.token_ids, delta.from_draft, strict=True):
            self._waiting.extend([is_draft] * len(self._detokenizer.add(token_id)))
        origins = [(bool(self._waiting) and self._waiting.popleft(), c) for c in delta.text]
        return "".join(
            click.style(text, fg=DRAFT_COLOUR) if is_draft else text
            for is_draft, group in groupby(origins, key=lambda pair: pair[0])
            for text in ["".join(character for _, character in group)]
        )
