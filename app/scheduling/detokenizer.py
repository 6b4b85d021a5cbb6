"""Text of a growing list of tokens, character by complete character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# An unfinished character spans at most a few byte tokens; a longer run of replacement characters is
# what the model really wrote.
_MAX_PENDING_TOKENS = 8


class IncrementalDetokenizer:
    """Decodes a short window of tokens at a time, so that a token costs the same at any length.

    `decode(token_ids) -> text` must be the tokenizer's own. A window starts one emitted token
    early: tokenizers that mark word starts decode a token differently behind another one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def add(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is unfinished."""
        self._pending.append(token_id)
        text = self._decode([*self._context, *self._pending])
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING_TOKENS:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """What is still pending, unfinished characters included."""
        if not self._pending:
            return ""
        return self._emit(self._decode([*self._context, *self._pending]))

    def drop(self) -> None:
        """Forget what is pending: the text ends before it."""
        self._pending = []

    def _emit(self, text: str) -> str:
        delta = text[len(self._context_text) :]
        self._context = self._pending
        self._context_text = self._decode(self._context)
        self._pending = []
        return delta
