"""Whether a request ends at a token; asked token by token inside an accepted run."""

from __future__ import annotations

from app.config.sampling_params import SamplingParams
from app.scheduling.detokenizer import IncrementalDetokenizer


class StopConditions:
    """Stop tokens by id, stop strings in the decoded text.

    `text` is the output so far without the stop token and cut before a stop string;
    `take_delta` gives what may be shown already: text that could still become a stop string is
    held back.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        detokenizer: IncrementalDetokenizer | None,
    ) -> None:
        if params.stop and detokenizer is None:
            raise ValueError("stop: stop strings need a tokenizer (skip_tokenizer_init is set)")
        stop_ids = frozenset(params.stop_token_ids)
        self._stop_token_ids = stop_ids if params.ignore_eos else stop_ids | eos_token_ids
        self._stop_strings = tuple(params.stop)
        self._detokenizer = detokenizer
        self._num_shown = 0
        self.text = ""

    def accept(self, token_id: int) -> bool:
        """Take the next output token; true when the request ends with it."""
        if token_id in self._stop_token_ids:
            self.finish()
            return True
        if self._detokenizer is None:
            return False
        delta = self._detokenizer.add(token_id)
        searched_from = max(0, len(self.text) - self._longest_stop + 1)
        self.text += delta
        return self._cut_at_stop_string(searched_from)

    def finish(self) -> None:
        """No more tokens: bytes of an unfinished character come out as they are."""
        if self._detokenizer is not None:
            searched_from = max(0, len(self.text) - self._longest_stop + 1)
            self.text += self._detokenizer.flush()
            self._cut_at_stop_string(searched_from)

    def take_delta(self, is_finished: bool) -> str:
        """Text that was not shown yet and can no longer change."""
        end = len(self.text) if is_finished else len(self.text) - self._num_held_back()
        delta = self.text[self._num_shown : max(end, self._num_shown)]
        self._num_shown += len(delta)
        return delta

    @property
    def _longest_stop(self) -> int:
        return max((len(stop) for stop in self._stop_strings), default=0)

    def _cut_at_stop_string(self, searched_from: int) -> bool:
        found = [self.text.find(stop, searched_from) for stop in self._stop_strings]
        found = [index for index in found if index >= 0]
        if not found:
            return False
        self.text = self.text[: min(found)]
        if self._detokenizer is not None:
            self._detokenizer.drop()
        return True

    def _num_held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stop_strings:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
