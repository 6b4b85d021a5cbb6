"""The example plugin of docs/plugins runs, from YAML and from a registry, and changes no output."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import SamplingParams, ServerArgs, open_engine
from app.speculative.builtin import builtin_algorithms
from app.testing.checkpoints import write_checkpoint

PROMPT = [11, 12, 13, 14, 15, 16] * 4
PARAMS = SamplingParams(max_new_tokens=40, ignore_eos=True)


@pytest.fixture(autouse=True)
def plugin_folder(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.syspath_prepend(root / "docs" / "plugins")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), vocab_size=32, seed=5)


def args_for(model: Path, algorithm: str | None, **values: object) -> ServerArgs:
    return ServerArgs(
        model_path=str(model),
        skip_tokenizer_init=True,
        speculative_algorithm=algorithm,
        **values,
    )


def test_a_suffix_finds_its_latest_earlier_place() -> None:
    from prompt_lookup import look_up

    assert look_up([1, 2, 3, 9, 1, 2, 3, 7, 1, 2, 3], 2) == [7, 1]
    assert look_up([5, 6, 1, 7, 1], 3) == [7, 1]
    assert look_up([1, 2, 3], 4) == []
    assert look_up([1], 4) == []


def test_greedy_output_is_the_targets_own(model: Path) -> None:
    from prompt_lookup import registration

    with open_engine(args_for(model, None)) as engine:
        alone = engine.generate([PROMPT], PARAMS)[0]
    algorithms = builtin_algorithms().with_registration(registration)
    with open_engine(args_for(model, "prompt_lookup"), algorithms=algorithms) as engine:
        # Together with a request of another length, so that trees of one batch meet.
        drafted, other = engine.generate([PROMPT, [3, 4, 3, 4, 3]], PARAMS)
    assert drafted.token_ids == alone.token_ids
    assert other.completion_tokens == PARAMS.max_new_tokens
    assert drafted.algorithm == "PROMPT_LOOKUP"
    assert drafted.spec is not None
    assert drafted.spec.to_json()["accepted"] <= drafted.spec.to_json()["proposed"]
    assert drafted.spec.to_json()["proposed"] > 0


def test_it_is_found_through_the_configuration(model: Path) -> None:
    args = args_for(model, "PROMPT_LOOKUP", plugins=("prompt_lookup:registration",))
    with open_engine(args) as engine:
        assert engine.status()["algorithm"] == "PROMPT_LOOKUP"
        assert engine.generate([PROMPT], PARAMS)[0].completion_tokens == PARAMS.max_new_tokens
