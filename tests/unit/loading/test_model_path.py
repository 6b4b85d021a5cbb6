"""What a model may be called, and what is said when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.model_path import cache_root, models_root, resolve_model_path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_root_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root() == cache
    monkeypatch.delenv("DRAFTSCOPE_CACHE")
    assert cache_root().name == "draftscope"


def test_directories_and_gguf_files_resolve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_model_path("model") == tmp_path / "model"
    assert resolve_model_path("./model.gguf") == tmp_path / "model.gguf"


def test_a_link_keeps_the_name_that_says_gguf(tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    link = tmp_path / "model.gguf"
    link.symlink_to(tmp_path / "blob")
    assert resolve_model_path(str(link)) == link


def test_named_checkpoints_of_the_cache_resolve() -> None:
    (models_root() / "tiny-llama").mkdir(parents=True)
    assert resolve_model_path("tiny-llama") == models_root() / "tiny-llama"


def test_a_local_directory_wins_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models_root() / "tiny-llama").mkdir(parents=True)
    (tmp_path / "tiny-llama").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model_path("tiny-llama") == tmp_path / "tiny-llama"


def test_a_zoo_model_that_is_not_there_says_how_to_get_it() -> None:
    with pytest.raises(ValueError, match="draftscope models pull smollm2-135m-shallow"):
        resolve_model_path("smollm2-135m-shallow")


@pytest.mark.parametrize("name", ["/no/such", "./no", "~/no-such-model", "a/b/c", "x.gguf", "a/"])
def test_absent_paths_do_not_reach_for_the_hub(name: str) -> None:
    with pytest.raises(ValueError, match=r"speculative_draft_model_path: .*does not exist"):
        resolve_model_path(name, field="speculative_draft_model_path")


def test_an_empty_path_is_not_the_working_directory() -> None:
    with pytest.raises(ValueError, match="model_path: is empty"):
        resolve_model_path("")


def test_a_weight_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ValueError, match="is a file; give the checkpoint's directory"):
        resolve_model_path(str(file))


@pytest.mark.parametrize("name", ["someone/some-model", "some-model"])
def test_offline_hub_ids_say_so_plainly(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="hub could not be reached") as error:
        resolve_model_path(name, download_dir=str(tmp_path))
    assert "\n" not in str(error.value)
    assert name in str(error.value)
