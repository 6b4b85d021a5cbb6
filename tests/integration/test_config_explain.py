"""`config explain`: each value with its source, target and draft side by side, without weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import app.loading.weight_iterators
from app.cli import cli
from app.config.explain import show
from app.config.load_time_gates import CHUNKED_PREFIX_GATE, DTYPE_GATE, PREFILL_KERNEL_GATE
from app.config.provenance import DEFAULT_SOURCE
from app.config.server_args import ServerArgs
from app.containers import EngineContainer
from app.engine import explain_config, open_engine
from tests.integration.pairs import EVERYTHING_DIFFERS, Pair, draft_tp_worker, write_pair

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything differs": EVERYTHING_DIFFERS,
    "ngram": {"speculative_algorithm": "NGRAM"},
    "tree": {
        "speculative_num_steps": 2,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 5,
    },
    "dense": {"attention_backend": "torch_dense", "speculative_draft_dtype": "bfloat16"},
    "own dtype": {"speculative_draft_dtype": "auto", "context_length": 128},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


def values_of(explained: dict[str, Any], side: str) -> dict[str, Any]:
    return {field: entry["value"] for field, entry in explained[side].items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_shows_the_records_that_a_real_engine_has(pair: Pair, shape: str) -> None:
    """The engine without weights runs the same gates as the one with."""
    explained = explain_config(pair.standalone(**SHAPES[shape]))
    container: Any = EngineContainer(server_args=pair.standalone(**SHAPES[shape]))
    with open_engine(container) as engine:
        target = engine.server_args
        draft = engine.scheduler.spec_worker.server_args
        assert values_of(explained, "target") == show(target)
        assert values_of(explained, "draft") == show(draft)
        for side, record in (("target", target), ("draft", draft)):
            sources = {field: entry["source"] for field, entry in explained[side].items()}
            assert sources == dict(record.sources)
        assert explained["differs"] == [
            field for field in ServerArgs.model_fields if show(target)[field] != show(draft)[field]
        ]
        if shape != "ngram":
            assert draft_tp_worker(engine.scheduler).server_args == draft


def test_status_after_the_draft_was_built_shows_the_targets_values(pair: Pair) -> None:
    args = pair.standalone(**EVERYTHING_DIFFERS)
    explained = explain_config(args)
    with open_engine(args) as engine:
        engine.generate([[1, 2, 3]])
        assert engine.status()["server_args"] == values_of(explained, "target")
    assert {"model_path", "load_format", "dtype", "context_length"} <= set(explained["differs"])


@pytest.mark.parametrize("is_deleted", [True, False])
def test_it_reads_no_weights(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    paths = {}
    for name, checkpoint in (("target", pair.target), ("draft", pair.draft)):
        paths[name] = Path(shutil.copytree(checkpoint, tmp_path / name))
        if is_deleted:
            (paths[name] / "model.safetensors").unlink()

    def refuse(file: Path) -> Any:
        raise AssertionError(f"{file} was opened")

    monkeypatch.setattr(app.loading.weight_iterators, "open_safetensors", refuse)
    explained = explain_config(
        pair.standalone(
            model_path=str(paths["target"]), speculative_draft_model_path=str(paths["draft"])
        )
    )
    assert explained["differs"] == ["model_path", "revision", "context_length"]


def test_without_a_draft_nothing_differs(pair: Pair) -> None:
    for args in (pair.args(), pair.standalone(speculative_num_steps=0)):
        explained = explain_config(args)
        assert explained["draft"] is None
        assert explained["differs"] == []


def test_every_layer_of_sources_is_named(pair: Pair, tmp_path: Path) -> None:
    base, config = tmp_path / "base.yaml", tmp_path / "config.yaml"
    base.write_text(f"model_path: {pair.target}\npage_size: 4\nchunked_prefill_size: 64\n")
    config.write_text(
        "extends: base.yaml\nchunked_prefill_size: 128\nattention_backend: torch_dense\n"
        f"speculative_algorithm: standalone\nspeculative_draft_model_path: {pair.draft}\n"
        "max_total_tokens: 64\nkv_cache_dtype: auto\n"
    )
    outcome = CliRunner().invoke(
        cli,
        [
            *("config", "explain", "--json", "--config", str(config)),
            *("--max-total-tokens", "512", "--speculative-num-steps", "2"),
            *("--set", "speculative_num_steps=4", "--set", "speculative_draft_dtype=bfloat16"),
        ],
        env={"DRAFTSCOPE_RANDOM_SEED": "3", "DRAFTSCOPE_MAX_TOTAL_TOKENS": "256"},
    )
    assert outcome.exit_code == 0, outcome.stderr
    explained = json.loads(outcome.stdout)
    target = {field: (e["value"], e["source"]) for field, e in explained["target"].items()}
    assert target["page_size"] == (4, str(base))
    assert target["chunked_prefill_size"] == (128, str(config))
    assert target["random_seed"] == (3, "env DRAFTSCOPE_RANDOM_SEED")
    assert target["max_total_tokens"] == (512, "flag --max-total-tokens")
    assert target["speculative_num_steps"] == (4, "--set speculative_num_steps")
    assert target["speculative_algorithm"] == ("STANDALONE", "rule algorithm_name")
    assert target["speculative_num_draft_tokens"] == (5, "rule STANDALONE")
    assert target["max_running_requests"] == (48, "rule max_running_requests")
    assert target["tokenizer_path"] == (str(pair.target), "rule tokenizer")
    assert target["dtype"] == ("float32", DTYPE_GATE)
    assert target["disable_chunked_prefix_cache"] == (True, CHUNKED_PREFIX_GATE)
    assert target["prefill_kernel"] == ("torch", PREFILL_KERNEL_GATE)
    assert target["context_length"] == (None, DEFAULT_SOURCE)

    draft = {field: (e["value"], e["source"]) for field, e in explained["draft"].items()}
    assert draft["model_path"] == (
        str(pair.draft),
        "draft copy: speculative_draft_model_path",
    )
    assert draft["context_length"] == (256, "draft copy: target's derived context length")
    assert draft["dtype"] == ("bfloat16", "draft copy: speculative_draft_dtype")
    # Inherited as they are, sources included.
    for field in ("page_size", "random_seed", "disable_chunked_prefix_cache", "tokenizer_path"):
        assert draft[field] == target[field]


def test_the_table_marks_what_differs(pair: Pair) -> None:
    arguments = ["config", "explain", "--model-path", str(pair.target)]
    arguments += ["--speculative-algorithm", "STANDALONE"]
    arguments += ["--speculative-draft-model-path", str(pair.draft)]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.stderr
    marked = [line.split()[1] for line in outcome.stdout.splitlines() if line.startswith("*")]
    assert marked == ["model_path", "revision", "context_length"]
    assert "page_size" not in outcome.stdout
    assert "page_size" in CliRunner().invoke(cli, [*arguments, "--all"]).stdout


def test_show_gives_values_only(pair: Pair) -> None:
    arguments = ["config", "show", "--json", "--model-path", str(pair.target)]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.stderr
    shown = json.loads(outcome.stdout)
    assert set(shown) == {"target"}
    assert shown["target"]["dtype"] == "float32"
    assert set(shown["target"]) == set(ServerArgs.model_fields)
