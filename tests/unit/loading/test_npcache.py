"""npcache: converted once, used again, renewed when the checkpoint changes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app.loading.checkpoint_files import find_checkpoint_files
from app.loading.npcache import iterate_npcache


def _stamps(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (directory / "np").iterdir()}


def test_second_load_reads_the_copy(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    toy.load(tmp_path, "npcache")
    stamps = _stamps(tmp_path)
    toy.assert_state(toy.load(tmp_path, "npcache"), toy.tensors())
    assert _stamps(tmp_path) == stamps


def test_a_changed_checkpoint_is_converted_again(toy: SimpleNamespace, tmp_path: Path) -> None:
    for seed in (1, 2):
        torch.save(toy.tensors(seed=seed), tmp_path / "pytorch_model.bin")
        os.utime(tmp_path / "pytorch_model.bin", ns=(seed, seed))
        toy.assert_state(toy.load(tmp_path, "npcache"), toy.tensors(seed=seed))
    assert not list(tmp_path.glob(".np-*"))


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    noise = torch.randn(4, 6)
    tensors = {
        "bf16": noise.bfloat16(),
        "fp8": noise.to(torch.float8_e4m3fn),
        "half": noise.half(),
        "packed": torch.arange(12, dtype=torch.uint8),
        "transposed": noise.T,
        "scalar": torch.tensor(2.5),
        "scalar_bf16": torch.tensor(2.5).bfloat16(),
        "empty": torch.empty(0, 3),
    }
    torch.save(tensors, tmp_path / "a.bin")
    found = dict(iterate_npcache(find_checkpoint_files(tmp_path, "npcache")))
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].float(), tensor.float()), name


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_copy_is_made_again(toy: SimpleNamespace, tmp_path: Path, content: str) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    toy.load(tmp_path, "npcache")
    (tmp_path / "np" / "weight_names.json").write_text(content)
    toy.assert_state(toy.load(tmp_path, "npcache"), toy.tensors())


def test_a_copy_that_cannot_be_written_is_explained(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    (tmp_path / ".np.lock").mkdir()
    with pytest.raises(ValueError, match="npcache cannot write"):
        toy.load(tmp_path, "npcache")


def test_a_copy_that_is_up_to_date_needs_no_lock(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    toy.load(tmp_path, "npcache")
    # As in a directory that is read-only: nobody can take the lock.
    (tmp_path / ".np.lock").unlink(missing_ok=True)
    (tmp_path / ".np.lock").mkdir()
    toy.assert_state(toy.load(tmp_path, "npcache"), toy.tensors())


def test_a_copy_that_lacks_a_file_is_made_again(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    toy.load(tmp_path, "npcache")
    (tmp_path / "np" / "000001.npy").unlink()
    toy.assert_state(toy.load(tmp_path, "npcache"), toy.tensors())
    assert (tmp_path / "np" / "000001.npy").is_file()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array", None])
def test_a_broken_file_of_a_copy_is_named(
    toy: SimpleNamespace, tmp_path: Path, content: bytes | None
) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    toy.load(tmp_path, "npcache")
    file = tmp_path / "np" / "000001.npy"
    # None: cut short behind its header.
    file.write_bytes(file.read_bytes()[:-8] if content is None else content)
    with pytest.raises(ValueError, match=r"npcache cannot read .*/np/000001\.npy: .*delete"):
        toy.load(tmp_path, "npcache")


def test_a_weight_file_that_has_gone_is_named(toy: SimpleNamespace, tmp_path: Path) -> None:
    torch.save(toy.tensors(), tmp_path / "pytorch_model.bin")
    checkpoint = find_checkpoint_files(tmp_path, "npcache")
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        dict(iterate_npcache(checkpoint))
