"""Text out of accepted runs: stop strings across tokens, streams that join to the whole text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from app.config.sampling_params import SamplingParams
from app.engine import Engine
from app.testing.tokenizers import EOS_ID
from tests.integration.engines import (
    TinyModels,
    accepted,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone
from tests.integration.rewriting import recite, rewrite

# Characters of one to four bytes; no byte comes twice, so that a token tells which one follows.
TEXT = "Hé, 日 is\n😀 ok!"
STEPS = (1, 2, 3, 5, 8)


@pytest.fixture(scope="module")
def reciter(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says TEXT behind the token "#", and then EOS."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    start, *tokens = tokenizer("#" + TEXT)["input_ids"]
    assert tokenizer.decode([start]) == "#"
    directory = tmp_path_factory.mktemp("reciter") / "target"
    return rewrite(tiny.target, directory, recite([start, *tokens, EOS_ID]))


@pytest.fixture(scope="module", params=["none", "ngram", *STEPS])
def engine(request: pytest.FixtureRequest, reciter: Path) -> Iterator[Engine]:
    """Runs of every length: no draft, n-grams, and perfect chains."""
    settings: dict[str, object] = {}
    if request.param == "ngram":
        settings = ngram(num_draft_tokens=4)
    elif request.param != "none":
        settings = standalone(reciter, num_steps=request.param)
    with open_tiny(reciter, settings, skip_tokenizer_init=False) as engine:
        # Now the n-grams are known too.
        engine.generate(["#"], raw=True)
        yield engine


def test_the_text_is_what_the_model_says(engine: Engine) -> None:
    (result,) = engine.generate(["#"], raw=True)
    assert result.text == TEXT
    assert result.finish_reason == "stop"
    assert result.token_ids[-1] == EOS_ID
    assert engine.scheduler.algorithm is None or accepted([result]) > 0


def test_ngrams_know_a_text_to_its_end(reciter: Path) -> None:
    with open_tiny(reciter, ngram(num_draft_tokens=4), skip_tokenizer_init=False) as engine:
        first, second = (engine.generate(["#"], raw=True)[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert second.from_draft[-1], "EOS was proposed, since the first text ended with it"


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_string_ends_the_text_at_every_place(engine: Engine, length: int) -> None:
    stops = [TEXT[start : start + length] for start in range(len(TEXT) - length + 1)]
    (whole,) = engine.generate(["#"], raw=True)
    results = engine.generate(["#"] * len(stops), [SamplingParams(stop=s) for s in stops], raw=True)
    for stop, result in zip(stops, results, strict=True):
        assert result.text == TEXT[: TEXT.index(stop)]
        assert result.finish_reason == "stop"
        num_tokens = result.completion_tokens
        assert result.token_ids == whole.token_ids[:num_tokens]
        # One token less does not complete the stop string.
        budget = SamplingParams(max_new_tokens=max(1, num_tokens - 1))
        (shorter,) = engine.generate(["#"], budget, raw=True)
        assert num_tokens == 1 or stop not in shorter.text


def test_stream_deltas_join_to_the_text_and_split_no_character(engine: Engine) -> None:
    middle = TEXT.index("日")
    for params, expected in (
        (SamplingParams(), TEXT),
        (SamplingParams(stop="ok"), TEXT[: TEXT.index("ok")]),
        (SamplingParams(stop=("日 i", "never")), TEXT[:middle]),
        # The text only begins the stop string: it comes out in the end.
        (SamplingParams(stop="ok!!"), TEXT),
    ):
        deltas = list(engine.stream("#", params, raw=True))
        assert "".join(delta.text for delta in deltas) == expected
        assert not any("\N{REPLACEMENT CHARACTER}" in delta.text for delta in deltas)
        reasons = [delta.finish_reason for delta in deltas]
        assert reasons == [None] * (len(deltas) - 1) + ["stop"], "once, with the last delta"
        result = deltas[-1].result
        assert result is not None
        assert result.text == expected
        assert result.token_ids == tuple(token for delta in deltas for token in delta.token_ids)
        assert result.from_draft == tuple(flag for delta in deltas for flag in delta.from_draft)


def test_a_stream_shows_nothing_of_a_stop_string(engine: Engine) -> None:
    shown = "".join(
        delta.text for delta in engine.stream("#", SamplingParams(stop="s\n😀"), raw=True)
    )
    assert shown == TEXT[: TEXT.index("s\n😀")]


def test_a_character_that_the_budget_cuts_is_the_same_with_and_without_stream(
    engine: Engine,
) -> None:
    (whole,) = engine.generate(["#"], raw=True)
    for budget in range(1, len(whole.token_ids)):
        params = SamplingParams(max_new_tokens=budget)
        (result,) = engine.generate(["#"], params, raw=True)
        assert result.finish_reason == "length"
        assert result.completion_tokens == budget
        shown = [delta.text for delta in engine.stream("#", params, raw=True)]
        assert "".join(shown) == result.text
        assert TEXT.startswith(result.text.rstrip("\N{REPLACEMENT CHARACTER}"))


def test_a_character_that_eos_cuts_is_shown_as_the_tokenizer_shows_it(
    tiny: TinyModels, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    tokens = tokenizer("#a😀")["input_ids"]
    cut = rewrite(tiny.target, tmp_path / "cut", recite([*tokens[:-1], EOS_ID]))
    with open_tiny(cut, standalone(cut, num_steps=3), skip_tokenizer_init=False) as engine:
        (result,) = engine.generate(["#"], raw=True)
    assert result.token_ids == (*tokens[1:-1], EOS_ID)
    assert result.text == tokenizer.decode(tokens[1:-1])


def test_random_bytes_stream_as_they_are_decoded(
    tiny: TinyModels, target_alone: TargetAlone
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    with open_tiny(
        tiny.target, standalone(tiny.perfect, num_steps=5), skip_tokenizer_init=False
    ) as engine:
        for seed in range(10):
            prompt = random_prompt(6, seed=seed)
            deltas = list(engine.stream(prompt, greedy(40)))
            text = "".join(delta.text for delta in deltas)
            expected = target_alone.greedy(prompt, 40)
            assert text == tokenizer.decode(expected, skip_special_tokens=True)
