"""The draft's model config: made once, from the draft's own inputs, and from nothing else."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers

import app.config.model_config
from app.runtime_context import RuntimeContext
from tests.integration.pairs import (
    CONTEXT_LENGTH,
    Pair,
    change_config,
    control_fails,
    decode,
    draft_tp_worker,
    target_is_untouched,
    without_speculation,
    write_pair,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


def hf_dicts(container: Any) -> dict[str, dict[str, Any]]:
    draft = draft_tp_worker(container.scheduler())
    return {
        "target": container.target.model_config().hf_config.to_dict(),
        "draft": draft.model_config.hf_config.to_dict(),
    }


# 13. An override of one model's config.json does not move the other's.


def assert_override_moves_one(pair: Pair, path: Path, side: str, container: Any) -> None:
    plain = hf_dicts(pair.build(speculative_draft_model_path=str(path)))
    moved = hf_dicts(container)
    other = "target" if side == "draft" else "draft"
    assert moved[other] == plain[other], f"the {other}'s config moved with the {side}'s"
    assert moved[side]["rope_parameters"]["rope_theta"] == 777.0
    assert plain[side]["rope_parameters"]["rope_theta"] != 777.0


FIELDS = {
    "target": "json_model_override_args",
    "draft": "speculative_draft_json_model_override_args",
}


@pytest.mark.parametrize("side", FIELDS)
@pytest.mark.parametrize("is_one_checkpoint", [False, True])
def test_an_override_of_one_model_does_not_move_the_other(
    pair: Pair, side: str, is_one_checkpoint: bool
) -> None:
    path = pair.target if is_one_checkpoint else pair.draft
    fields: dict[str, Any] = {FIELDS[side]: {"rope_theta": 777.0}}
    container = pair.build(speculative_draft_model_path=str(path), **fields)
    with target_is_untouched(container):
        container.scheduler()
    assert_override_moves_one(pair, path, side, container)
    alone = pair.decode_alone(**(fields if side == "target" else {}))
    assert decode(container) == alone


def test_control_overrides_that_are_inherited(pair: Pair) -> None:
    container = pair.build(json_model_override_args={"rope_theta": 777.0})

    def inheriting(context: RuntimeContext, worker: Any) -> Any:
        fields = {"model_path": str(pair.draft), "context_length": CONTEXT_LENGTH}
        return context.resolved.derive("control", fields, as_draft_copy=True)

    container.draft_config.override(
        providers.Factory(inheriting, container.runtime_context, container.target.tp_worker)
    )
    with control_fails("the draft's config moved"):
        assert_override_moves_one(pair, pair.draft, "target", container)


@pytest.mark.parametrize("side", FIELDS)
def test_a_layer_count_of_one_model_is_its_own(pair: Pair, side: str) -> None:
    fields: dict[str, Any] = {FIELDS[side]: {"num_hidden_layers": 1}, "load_format": "dummy"}
    container = pair.build(speculative_draft_model_path=str(pair.target), **fields)
    draft = draft_tp_worker(container.scheduler())
    layers = {
        "target": len(container.target.tp_worker().kv_geometry),
        "draft": len(draft.kv_geometry),
    }
    assert layers == {"target": 2, "draft": 2} | {side: 1}
    assert container.scheduler().pools.num_slots == draft.token_to_kv_pool.num_slots


# 15. The draft's config is read once, with the draft's inputs.


class ReadLog:
    """Counts opens of config files and notes what `load_hf_config` is called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.calls: list[tuple[Path, dict[str, Any]]] = []
        real_open, real_load = io.open, app.config.model_config.load_hf_config

        def counting_open(file: Any, *args: Any, **kwargs: Any) -> Any:
            self.opened.append(str(file))
            return real_open(file, *args, **kwargs)

        def noting_load(model_path: Path, **inputs: Any) -> Any:
            self.calls.append((model_path, inputs))
            return real_load(model_path, **inputs)

        monkeypatch.setattr("io.open", counting_open)
        monkeypatch.setattr("builtins.open", counting_open)
        monkeypatch.setattr(app.config.model_config, "load_hf_config", noting_load)

    def num_reads_of(self, checkpoint: Path) -> int:
        return self.opened.count(str(checkpoint / "config.json"))

    def inputs_of(self, checkpoint: Path) -> list[dict[str, Any]]:
        return [inputs for path, inputs in self.calls if path == checkpoint]


def test_the_drafts_config_is_read_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    container = pair.build(
        trust_remote_code=True,
        json_model_override_args={"rope_theta": 777.0},
        speculative_draft_json_model_override_args={"rope_theta": 500.0},
    )
    container.target.tp_worker()
    log = ReadLog(monkeypatch)
    decode(container)
    assert log.num_reads_of(pair.draft) == 1
    assert [path for path, _ in log.calls] == [pair.draft]
    (inputs,) = log.inputs_of(pair.draft)
    assert inputs["overrides"] == {"rope_theta": 500.0}
    assert inputs["trust_remote_code"] is False
    assert inputs["trust_field"] == "speculative_draft_trust_remote_code"


def test_every_read_of_the_drafts_config_has_the_same_inputs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explicit dtype of auto needs the draft's config before the draft is built."""
    log = ReadLog(monkeypatch)
    decode(
        pair.build(
            speculative_draft_dtype="auto",
            speculative_draft_trust_remote_code=True,
            speculative_draft_json_model_override_args={"rope_theta": 500.0},
        )
    )
    reads = log.inputs_of(pair.draft)
    assert len(reads) == log.num_reads_of(pair.draft)
    assert all(inputs == reads[0] for inputs in reads)


def test_an_algorithm_without_a_draft_model_reads_no_second_config(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ReadLog(monkeypatch)
    decode(pair.build(speculative_algorithm="NGRAM"))
    assert log.num_reads_of(pair.draft) == 0
    assert len(log.inputs_of(pair.target)) == 1


class Hub:
    """Two revisions of a draft whose configs differ; notes what is asked for."""

    def __init__(self, pair: Pair, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.snapshots = {
            revision: Path(shutil.copytree(pair.draft, root / revision))
            for revision in ("main", "pinned")
        }
        change_config(self.snapshots["pinned"], max_position_embeddings=48, rope_theta=123.0)
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.download)

    def download(self, repo_id: str, *, revision: str | None, **_: Any) -> str:
        self.asked.append((repo_id, revision))
        return str(self.snapshots[revision or "main"])


@pytest.mark.parametrize("revision", [None, "pinned"])
def test_a_pinned_draft_is_read_at_its_own_revision_only(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    hub = Hub(pair, tmp_path, monkeypatch)
    log = ReadLog(monkeypatch)
    container = pair.build(
        revision="of-the-target",
        speculative_draft_model_path="someone/draft",
        speculative_draft_model_revision=revision,
    )
    with target_is_untouched(container):
        draft = draft_tp_worker(container.scheduler())
    wanted = revision or "main"
    assert set(hub.asked) == {("someone/draft", wanted)}
    assert [path for path, _ in log.calls] == [pair.target, hub.snapshots[wanted]]
    other = hub.snapshots["main" if wanted == "pinned" else "pinned"]
    assert not [path for path in log.opened if path.startswith(f"{other}/")]
    assert draft.model_config.model_path == hub.snapshots[wanted]
    assert container.runtime_context().resolved.revision == "of-the-target"


def test_a_draft_config_without_a_model_type_names_its_file(pair: Pair, tmp_path: Path) -> None:
    draft = Path(shutil.copytree(pair.draft, tmp_path / "draft"))
    change_config(draft, model_type=None)
    container = pair.build(speculative_draft_model_path=str(draft))
    with (
        target_is_untouched(container),
        pytest.raises(ValueError, match=rf"{draft}/config\.json: model_type is missing"),
    ):
        container.scheduler()
    assert decode(without_speculation(container)) == pair.decode_alone()


def test_a_tokenizer_that_cannot_be_read_names_its_file(pair: Pair, tmp_path: Path) -> None:
    draft = Path(shutil.copytree(pair.draft, tmp_path / "draft"))
    for content in ('{"model": ', json.dumps({"model": {}}), "[]"):
        (draft / "tokenizer.json").write_text(content, "utf-8")
        container = pair.build(speculative_draft_model_path=str(draft))
        with pytest.raises(ValueError, match=rf"draft worker .*{draft}/tokenizer\.json"):
            container.scheduler()
