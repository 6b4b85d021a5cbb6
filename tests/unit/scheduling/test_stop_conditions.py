"""Stop tokens, stop strings across tokens, and what a stream may show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.sampling_params import SamplingParams
from app.scheduling.detokenizer import IncrementalDetokenizer
from app.scheduling.stop_conditions import StopConditions


def decode_bytes(token_ids: Sequence[int]) -> str:
    """A byte-level tokenizer: token = byte."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def conditions(eos: frozenset[int] = frozenset(), **params: object) -> StopConditions:
    return StopConditions(
        SamplingParams.model_validate(params), eos, IncrementalDetokenizer(decode_bytes)
    )


def feed(stop: StopConditions, data: bytes) -> tuple[int, list[str]]:
    """Feed bytes until the request ends; how many were taken, and the deltas of a stream."""
    deltas = []
    for taken, byte in enumerate(data, start=1):
        is_finished = stop.accept(byte)
        deltas.append(stop.take_delta(is_finished))
        if is_finished:
            return taken, deltas
    stop.finish()
    deltas.append(stop.take_delta(is_finished=True))
    return len(data), deltas


@settings(max_examples=100, deadline=None)
@given(text=st.text(min_size=1, max_size=30))
def test_deltas_join_to_the_text_whatever_the_characters(text: str) -> None:
    stop = conditions()
    taken, deltas = feed(stop, text.encode())
    assert taken == len(text.encode())
    assert "".join(deltas) == stop.text == text
    # A character appears when it is complete, never as a replacement character before.
    assert all("\N{REPLACEMENT CHARACTER}" not in d for d in deltas) or "\ufffd" in text


def test_an_unfinished_character_at_the_end_is_shown_as_the_tokenizer_shows_it() -> None:
    stop = conditions()
    _, deltas = feed(stop, "a\u00e9".encode()[:-1])
    assert "".join(deltas) == stop.text == "a\ufffd"


@pytest.mark.parametrize("offset", range(6))
def test_a_stop_string_is_found_across_tokens_and_cut(offset: int) -> None:
    text = "x" * offset + "STOP" + "tail"
    stop = conditions(stop=("STOP",))
    taken, deltas = feed(stop, text.encode())
    assert taken == offset + 4, "the run ends at the token that completes the stop string"
    assert "".join(deltas) == stop.text == "x" * offset


def test_text_that_only_begins_a_stop_string_is_shown_once_it_cannot_become_one() -> None:
    stop = conditions(stop=("STOP",))
    _, deltas = feed(stop, b"STOx")
    assert deltas == ["", "", "", "STOx", ""]


def test_the_earliest_of_several_stop_strings_wins() -> None:
    stop = conditions(stop=("b", "ab"))
    feed(stop, b"xab")
    assert stop.text == "x"


def test_eos_ends_the_request_and_is_not_text() -> None:
    stop = conditions(eos=frozenset([0x7E]))
    taken, _ = feed(stop, b"ab~cd")
    assert (taken, stop.text) == (3, "ab")


def test_ignore_eos_leaves_stop_token_ids_in_force() -> None:
    stop = conditions(eos=frozenset([0x7E]), ignore_eos=True, stop_token_ids=(0x21,))
    taken, _ = feed(stop, b"a~b!c")
    assert (taken, stop.text) == (4, "a~b")


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ValueError, match="skip_tokenizer_init"):
        StopConditions(SamplingParams(stop=("x",)), frozenset(), None)
