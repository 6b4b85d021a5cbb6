"""One checkpoint in every format loads to the same tensors; every other name is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from app.config.load_formats import REFUSED_LOAD_FORMATS, SUPPORTED_LOAD_FORMATS
from app.config.server_args import ServerArgs
from app.loading.sharded_state_loader import save_sharded_state
from app.loading.weight_utils import load_weights

Tensors = dict[str, torch.Tensor]


def _split(tensors: Tensors) -> tuple[Tensors, Tensors]:
    names = sorted(tensors)
    return {n: tensors[n] for n in names[::2]}, {n: tensors[n] for n in names[1::2]}


def _write_index(path: Path, parts: dict[str, Tensors]) -> None:
    weight_map = {name: file for file, part in parts.items() for name in part}
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_safetensors(directory: Path, tensors: Tensors) -> None:
    save_file(tensors, directory / "model.safetensors")


def write_sharded_safetensors(directory: Path, tensors: Tensors) -> None:
    parts = dict(zip(("model-1.safetensors", "model-2.safetensors"), _split(tensors), strict=True))
    for file, part in parts.items():
        save_file(part, directory / file)
    _write_index(directory / "model.safetensors.index.json", parts)


def write_bin(directory: Path, tensors: Tensors) -> None:
    torch.save(tensors, directory / "pytorch_model.bin")


def write_sharded_bin(directory: Path, tensors: Tensors) -> None:
    parts = dict(zip(("model-1.bin", "model-2.bin"), _split(tensors), strict=True))
    for file, part in parts.items():
        torch.save(part, directory / file)
    _write_index(directory / "pytorch_model.bin.index.json", parts)


def write_old_bin(directory: Path, tensors: Tensors) -> None:
    torch.save(tensors, directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def write_pt(directory: Path, tensors: Tensors) -> None:
    for number, part in enumerate(_split(tensors)):
        torch.save(part, directory / f"weights.{number}.pt")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("load_format", "write"),
    [
        ("auto", write_safetensors),
        ("auto", write_sharded_safetensors),
        ("auto", write_bin),
        ("auto", write_sharded_bin),
        ("auto", write_old_bin),
        ("auto", write_pt),
        ("safetensors", write_safetensors),
        ("safetensors", write_sharded_safetensors),
        ("pt", write_pt),
        ("npcache", write_bin),
        ("npcache", write_sharded_bin),
        ("layered", write_safetensors),
        ("layered", write_sharded_bin),
    ],
)
def test_formats_give_identical_tensors(
    toy: SimpleNamespace,
    tmp_path: Path,
    load_format: str,
    write: Callable[[Path, Tensors], None],
    dtype: torch.dtype,
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in toy.tensors().items()}
    write(tmp_path, tensors)
    toy.assert_state(toy.load(tmp_path, load_format, dtype=dtype), tensors)


def test_sharded_state_gives_identical_tensors(toy: SimpleNamespace, tmp_path: Path) -> None:
    model, tensors = toy.build(is_tied=True), toy.tensors(is_tied=True)
    load_weights(model, tensors.items())
    save_sharded_state(model, tmp_path)
    toy.assert_state(toy.load(tmp_path, "sharded_state", is_tied=True), tensors)


def test_post_processing_runs_once_for_every_module(toy: SimpleNamespace, tmp_path: Path) -> None:
    write_safetensors(tmp_path, toy.tensors())
    for load_format, seen in (("auto", "auto"), ("layered", "auto"), ("dummy", "dummy")):
        model = toy.load(tmp_path, load_format)
        assert {module for module, _ in model.processed} == set(model.modules())
        assert len(model.processed) == len(set(model.modules()))
        assert {name for _, name in model.processed} == {seen}


def test_the_first_pattern_that_matches_wins(toy: SimpleNamespace, tmp_path: Path) -> None:
    wanted = toy.tensors(seed=1)
    write_safetensors(tmp_path, wanted)
    write_bin(tmp_path, toy.tensors(seed=2))
    write_pt(tmp_path, toy.tensors(seed=3))
    toy.assert_state(toy.load(tmp_path, "auto"), wanted)
    toy.assert_state(toy.load(tmp_path, "npcache"), toy.tensors(seed=2))
    toy.assert_state(toy.load(tmp_path, "pt"), toy.tensors(seed=3))


@pytest.mark.parametrize(
    ("load_format", "patterns"),
    [
        ("auto", r"\*\.safetensors or \*\.bin or \*\.pt"),
        ("safetensors", r"\*\.safetensors"),
        ("pt", r"\*\.pt"),
        ("npcache", r"\*\.bin"),
        ("layered", r"\*\.safetensors or \*\.bin or \*\.pt"),
        ("sharded_state", r"model-rank-0-part-\*\.safetensors"),
        ("gguf", r"\.gguf"),
    ],
)
def test_no_files_names_directory_and_patterns(
    toy: SimpleNamespace, tmp_path: Path, load_format: str, patterns: str
) -> None:
    if load_format == "pt":
        # The format pt reads *.pt only, not what trainers call *.bin.
        write_bin(tmp_path, toy.tensors())
    with pytest.raises(ValueError, match=patterns) as error:
        toy.load(tmp_path, load_format)
    assert str(tmp_path) in str(error.value)


def test_dummy_opens_no_checkpoint(toy: SimpleNamespace, tmp_path: Path) -> None:
    toy.load(tmp_path / "absent", "dummy")


@pytest.mark.parametrize("load_format", [f for f in SUPPORTED_LOAD_FORMATS if f != "sharded_state"])
def test_options_that_a_format_lacks_are_refused(
    toy: SimpleNamespace, tmp_path: Path, load_format: str
) -> None:
    with pytest.raises(ValueError, match=r"model_loader_extra_config.*num_threads"):
        toy.load(tmp_path, load_format, extra={"num_threads": 4})


SGLANG_LOAD_FORMATS = (
    "auto",
    "pt",
    "safetensors",
    "instanttensor",
    "npcache",
    "dummy",
    "sharded_state",
    "presharded",
    "gguf",
    "expert_pack",
    "bitsandbytes",
    "mistral",
    "layered",
    "flash_rl",
    "remote",
    "remote_instance",
    "fastsafetensors",
    "private",
    "runai_streamer",
    "jax",
    "rdma",
    "local_cached",
    "ipc_cache",
)


@pytest.mark.parametrize("load_format", SGLANG_LOAD_FORMATS)
def test_every_name_of_sglang_is_read_or_refused_with_advice(load_format: str) -> None:
    if load_format in SUPPORTED_LOAD_FORMATS:
        assert ServerArgs(model_path="m", load_format=load_format).load_format == load_format
        return
    with pytest.raises(ValueError, match=f"'{load_format}'.*is not supported") as error:
        ServerArgs(model_path="m", load_format=load_format)
    assert REFUSED_LOAD_FORMATS[load_format] in str(error.value)


def test_unknown_format_names_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"load_format.*did you mean 'safetensors'"):
        ServerArgs(model_path="m", load_format="safetensor")
