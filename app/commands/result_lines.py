"""`generate --json`: one line a prompt, early, and in the order of the prompts."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from app.commands.output import print_json

if TYPE_CHECKING:
    from app.results import GenerateResult


class ResultLines:
    """Prints each result as soon as all prompts before it are done.

    As a context manager it prints what still waits for an earlier prompt when decoding breaks off:
    nothing that was finished is lost.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, GenerateResult] = {}
        self._next = 0

    def add(self, index: int, result: GenerateResult) -> None:
        """Take the result of prompt `index`; results come in any order."""
        self._waiting[index] = result
        while self._next in self._waiting:
            # Out of the way first: a broken pipe must not have it printed twice.
            ready = self._waiting.pop(self._next)
            self._next += 1
            print_json(ready.to_json())

    def __enter__(self) -> ResultLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an OSError there may be nobody left to print to.
        if isinstance(error, OSError):
            return
        for index in sorted(self._waiting):
            print_json(self._waiting.pop(index).to_json())
