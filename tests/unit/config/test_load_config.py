from __future__ import annotations

from pathlib import Path

import pytest

from app.config.load_config import build_load_config
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs


def test_carries_the_records_values() -> None:
    config = build_load_config(
        ServerArgs(
            model_path="m",
            load_format="sharded_state",
            revision="r",
            download_dir="/d",
            model_loader_extra_config={"pattern": "x"},
        )
    )
    assert (config.load_format, config.revision, config.download_dir) == (
        "sharded_state",
        "r",
        "/d",
    )
    assert config.extra_config == {"pattern": "x"}


@pytest.mark.parametrize(
    ("path", "load_format", "expected"),
    [("a/m.gguf", "auto", "gguf"), ("a/m", "auto", "auto"), ("a/m.gguf", "dummy", "dummy")],
)
def test_auto_is_decided_by_the_models_own_path(path: str, load_format: str, expected: str) -> None:
    args = ServerArgs(model_path=str(Path(path)), load_format=load_format)
    assert build_load_config(args).load_format == expected
    assert args.load_format == load_format


def test_sampling_defaults_are_greedy() -> None:
    params = SamplingParams()
    assert params.is_greedy
    assert not SamplingParams(temperature=0.5).is_greedy
    assert SamplingParams(stop="END", stop_token_ids=[1]).stop == ("END",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature = -1: input should be greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature = nan: input should be"),
        ({"top_k": -2}, "top_k = -2"),
        ({"top_p": 0}, "top_p = 0"),
        ({"min_p": 1.5}, "min_p = 1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"stop": ["a", ""]}, "stop = ''"),
        ({"stop_token_ids": [-1]}, "stop_token_ids = -1"),
        ({"seed": -1}, "seed = -1"),
        ({"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'?"),
    ],
)
def test_faulty_sampling_params(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        SamplingParams(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
