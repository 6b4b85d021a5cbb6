"""A request ends at the same token, for the same reason, wherever in an accepted run it falls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from app.config.sampling_params import SamplingParams
from app.engine import Engine
from app.results import GenerateResult
from app.testing.tokenizers import EOS_ID
from tests.integration.engines import (
    TinyModels,
    accepted,
    free_tokens,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone
from tests.integration.rewriting import rewrite, zero_layers

NUM_STEPS = 5
# The prefill's token, two whole runs of accepted drafts and bonus, and one more.
NUM_TOKENS = 2 * NUM_STEPS + 3


def distinct_prompt(says: Callable[[list[int]], list[int]]) -> list[int]:
    """A prompt behind which no token comes twice, so that a stop token fits one place alone."""
    for seed in range(200):
        prompt = random_prompt(8, seed=seed)
        said = says(prompt)
        if len(set(said)) == len(said) and EOS_ID not in said:
            return prompt
    raise AssertionError("no prompt of 200 gives distinct tokens")


@pytest.fixture(scope="module")
def prompt(target_alone: TargetAlone) -> list[int]:
    return distinct_prompt(lambda prompt: target_alone.greedy(prompt, NUM_TOKENS))


@pytest.fixture(scope="module")
def run(target_alone: TargetAlone, prompt: list[int]) -> list[int]:
    """What the target says behind `prompt`."""
    return target_alone.greedy(prompt, NUM_TOKENS)


@pytest.fixture(scope="module")
def alone(tiny: TinyModels) -> Iterator[Engine]:
    """The target without a draft."""
    with open_tiny(tiny.target, skip_tokenizer_init=False) as engine:
        yield engine


@pytest.fixture(scope="module", params=["chain", "tree", "ngram"])
def drafted(
    request: pytest.FixtureRequest, tiny: TinyModels, prompt: list[int]
) -> Iterator[Engine]:
    """The target with drafts that are right."""
    settings = {
        "chain": standalone(tiny.perfect, num_steps=NUM_STEPS),
        "tree": standalone(tiny.perfect, num_steps=NUM_STEPS, topk=2, num_draft_tokens=16),
        "ngram": ngram(num_draft_tokens=NUM_STEPS + 1),
    }[request.param]
    with open_tiny(tiny.target, settings, skip_tokenizer_init=False) as engine:
        # Now the n-grams of the text are known too.
        (result,) = engine.generate([prompt], greedy(NUM_TOKENS + NUM_STEPS))
        assert result.finish_reason == "length"
        yield engine


def outcome(result: GenerateResult) -> tuple[tuple[int, ...], str, str | None]:
    assert result.completion_tokens == len(result.token_ids) == len(result.from_draft)
    return result.token_ids, result.text, result.finish_reason


def assert_same_outcomes(
    drafted: Engine, alone: Engine, prompt: list[int], params: list[SamplingParams]
) -> list[GenerateResult]:
    prompts = [prompt] * len(params)
    free_at_start = free_tokens(drafted)
    results = drafted.generate(prompts, params)
    expected = alone.generate(prompts, params)
    assert [outcome(result) for result in results] == [outcome(result) for result in expected]
    assert accepted(results) > 0
    assert free_tokens(drafted) == free_at_start
    return results


def test_a_stop_token_at_every_place_under_every_budget(
    drafted: Engine, alone: Engine, prompt: list[int], run: list[int]
) -> None:
    places = [
        (place, budget) for place in range(1, NUM_TOKENS + 1) for budget in range(1, NUM_TOKENS + 1)
    ]
    params = [
        SamplingParams(max_new_tokens=budget, stop_token_ids=(run[place - 1],))
        for place, budget in places
    ]
    results = assert_same_outcomes(drafted, alone, prompt, params)
    for (place, budget), result in zip(places, results, strict=True):
        assert list(result.token_ids) == run[: min(place, budget)]
        assert result.finish_reason == ("stop" if place <= budget else "length")


def test_every_budget_gives_so_many_tokens(
    drafted: Engine, alone: Engine, prompt: list[int], run: list[int]
) -> None:
    params = [greedy(budget) for budget in range(1, NUM_TOKENS + 1)]
    results = assert_same_outcomes(drafted, alone, prompt, params)
    for budget, result in enumerate(results, start=1):
        assert list(result.token_ids) == run[:budget]
        assert result.finish_reason == "length"
        assert result.spec is not None
        # No counter counts tokens that were cut off.
        assert result.spec.emitted <= result.completion_tokens - 1
        assert result.spec.accepted == sum(result.from_draft)


def test_the_earliest_of_several_stops_wins(
    drafted: Engine, alone: Engine, prompt: list[int], run: list[int]
) -> None:
    params = [
        SamplingParams(max_new_tokens=NUM_TOKENS, stop_token_ids=(run[i], run[j]))
        for i in range(NUM_TOKENS)
        for j in range(i)
    ]
    for result in assert_same_outcomes(drafted, alone, prompt, params):
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("place", range(1, NUM_STEPS + 3))
def test_the_models_own_eos_ends_a_run_at_every_place(
    tiny: TinyModels, prompt: list[int], run: list[int], place: int
) -> None:
    # The token that the target says there is declared its EOS.
    with open_tiny(
        tiny.target,
        standalone(tiny.perfect, num_steps=NUM_STEPS),
        json_model_override_args={"eos_token_id": run[place - 1]},
    ) as engine:
        stopped, ignored = engine.generate(
            [prompt] * 2, [SamplingParams(max_new_tokens=NUM_TOKENS), greedy(NUM_TOKENS)]
        )
    assert list(stopped.token_ids) == run[:place]
    assert stopped.finish_reason == "stop"
    assert list(ignored.token_ids) == run
    assert ignored.finish_reason == "length"


@pytest.fixture(scope="module")
def says_eos(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that proposes EOS and nothing else: every token has the same embedding, no layer adds
    to it, and the head knows only EOS."""

    def only_eos(tensors: dict[str, torch.Tensor]) -> None:
        zero_layers(tensors)
        tensors["model.embed_tokens.weight"].fill_(1.0)
        tensors["lm_head.weight"].zero_()
        tensors["lm_head.weight"][EOS_ID] = 1.0

    return rewrite(tiny.target, tmp_path_factory.mktemp("eos") / "draft", only_eos)


@pytest.mark.parametrize("topk", [1, 2])
def test_an_eos_that_only_the_draft_proposes_does_not_stop(
    tiny: TinyModels,
    target_alone: TargetAlone,
    prompt: list[int],
    run: list[int],
    says_eos: Path,
    topk: int,
) -> None:
    settings = standalone(says_eos, num_steps=3, topk=topk)
    with open_tiny(tiny.target, settings, skip_tokenizer_init=False) as engine:
        (result,) = engine.generate([prompt], SamplingParams(max_new_tokens=NUM_TOKENS))
    assert EOS_ID not in run
    target_alone.assert_same(result, NUM_TOKENS)
    assert result.finish_reason == "length"
    assert result.spec is not None
    assert (result.spec.accepted, result.spec.proposed > 0) == (0, True)


def test_an_eos_that_the_target_confirms_stops(
    tiny: TinyModels, target_alone: TargetAlone, says_eos: Path
) -> None:
    prompt, said = next(
        (prompt, said)
        for seed in range(2000)
        for prompt in [random_prompt(6, seed=seed)]
        for said in [target_alone.greedy(prompt, 6)]
        if EOS_ID in said[2:]
    )
    end = said.index(EOS_ID) + 1
    settings = standalone(says_eos, num_steps=3)
    with open_tiny(tiny.target, settings, skip_tokenizer_init=False) as engine:
        (result,) = engine.generate([prompt], SamplingParams(max_new_tokens=40))
    assert list(result.token_ids) == said[:end]
    assert result.finish_reason == "stop"
    assert result.from_draft[-1], "the draft proposed it"
