"""Which files are read: index files, duplicates, leftovers of training, damaged files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file


def test_index_keeps_duplicate_files_out(toy: SimpleNamespace, tmp_path: Path) -> None:
    tensors = toy.tensors()
    save_file(tensors, tmp_path / "model-00001.safetensors")
    save_file(toy.tensors(seed=9), tmp_path / "consolidated.safetensors")
    weight_map = dict.fromkeys(tensors, "model-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    toy.assert_state(toy.load(tmp_path, "auto"), tensors)


def test_index_decides_between_two_copies_of_a_tensor(toy: SimpleNamespace, tmp_path: Path) -> None:
    tensors = toy.tensors()
    stale = {"model.norm.weight": torch.zeros(64), "lm_head.weight": tensors["lm_head.weight"]}
    save_file(tensors, tmp_path / "a.safetensors")
    save_file(stale, tmp_path / "b.safetensors")
    weight_map = dict.fromkeys(tensors, "a.safetensors") | {"lm_head.weight": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    toy.assert_state(toy.load(tmp_path, "auto"), tensors)


def test_single_file_wins_over_strays_without_an_index(
    toy: SimpleNamespace, tmp_path: Path
) -> None:
    save_file(toy.tensors(), tmp_path / "model.safetensors")
    save_file(toy.tensors(seed=9), tmp_path / "consolidated.safetensors")
    toy.assert_state(toy.load(tmp_path, "auto"), toy.tensors())


def test_training_files_are_not_weights(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(toy.tensors(), tmp_path / "weights.bin")
    torch.save({"lr": torch.ones(1)}, tmp_path / "training_args.bin")
    torch.save({"state": torch.ones(1)}, tmp_path / "optimizer.bin")
    toy.assert_state(toy.load(tmp_path, "auto"), toy.tensors())


def test_index_that_lists_an_absent_file_names_it(tmp_path: Path, toy: SimpleNamespace) -> None:
    save_file(toy.tensors(), tmp_path / "a.safetensors")
    weight_map = {"x": "gone.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"index\.json.*absent: gone\.safetensors"):
        toy.load(tmp_path, "auto")


@pytest.mark.parametrize(
    "content", ["{", "[]", "[" * 100_000, '{"weight_map": 3}', '{"weight_map": {"x": 3}}']
)
def test_broken_index_is_named(tmp_path: Path, toy: SimpleNamespace, content: str) -> None:
    save_file(toy.tensors(), tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json: not a weight index"):
        toy.load(tmp_path, "auto")


@pytest.mark.parametrize("num_bytes", [0, 5, 100, -1])
def test_truncated_safetensors_is_named(
    toy: SimpleNamespace, tmp_path: Path, num_bytes: int
) -> None:
    file = tmp_path / "model.safetensors"
    save_file(toy.tensors(), file)
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file: ."):
        toy.load(tmp_path, "auto")


def test_corrupt_safetensors_header_is_named(toy: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(toy.tensors(), file)
    content = bytearray(file.read_bytes())
    content[20:40] = b"x" * 20
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        toy.load(tmp_path, "safetensors")


@pytest.mark.parametrize("num_bytes", [0, 100, -1000])
def test_truncated_bin_is_named(toy: SimpleNamespace, tmp_path: Path, num_bytes: int) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save(toy.tensors(), file)
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: not a readable torch weight file"):
        toy.load(tmp_path, "auto")


class _Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code of the checkpoint ran')",))


def test_code_inside_a_torch_file_does_not_run(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(_Payload(), tmp_path / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(
        ValueError,
        match=r"pytorch_model\.bin: not a .*: it holds \S*exec, and only tensors are read$",
    ):
        toy.load(tmp_path, "auto")


@pytest.mark.parametrize(
    "content", [b"garbage", b"\x80\x02}q\x00.", b"\x80\x04\x95", b"cos\nsystem\n.", b"PK\x03\x04"]
)
def test_a_damaged_torch_file_is_named_without_advice_to_run_it(
    toy: SimpleNamespace, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"model\.pt: not a readable torch weight file: ."
    ) as caught:
        toy.load(tmp_path, "pt")
    assert "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_training_checkpoint_is_no_state_dict(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model": toy.tensors()}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match=r"last\.pt: not a state dict"):
        toy.load(tmp_path, "pt")


def test_missing_tensors_name_the_checkpoint(toy: SimpleNamespace, tmp_path: Path) -> None:
    tensors = toy.tensors()
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"does not fit ToyLlama.*model\.norm\.weight") as error:
        toy.load(tmp_path, "auto")
    assert str(tmp_path) in str(error.value)


def test_a_file_where_a_directory_is_read(toy: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ValueError, match="not a directory"):
        toy.load(file, "safetensors")
