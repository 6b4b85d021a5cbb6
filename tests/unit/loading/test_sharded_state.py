"""What sharded_state writes and what it refuses to read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch import nn

from app.loading.sharded_state_loader import save_sharded_state
from app.loading.weight_utils import load_weights


@pytest.fixture
def model(toy: SimpleNamespace) -> nn.Module:
    model = toy.build()
    load_weights(model, toy.tensors().items())
    return model


def _names(directory: Path) -> list[str]:
    names: list[str] = []
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="pt") as reader:
            names += reader.keys()
    return names


def test_large_state_is_split_and_read_back(
    toy: SimpleNamespace, model: nn.Module, tmp_path: Path
) -> None:
    save_sharded_state(model, tmp_path, max_part_bytes=40_000)
    assert len(list(tmp_path.iterdir())) > 3
    assert (tmp_path / "model-rank-0-part-0.safetensors").is_file()
    toy.assert_state(toy.load(tmp_path, "sharded_state"), toy.tensors())


def test_shared_memory_is_written_once(
    toy: SimpleNamespace, model: nn.Module, tmp_path: Path
) -> None:
    # Two parameters over one memory, which the model does not declare as tied.
    model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.detach())
    save_sharded_state(model, tmp_path)
    names = _names(tmp_path)
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    loaded = toy.load(tmp_path, "sharded_state")
    assert torch.equal(loaded.lm_head.weight, model.model.embed_tokens.weight)


def test_a_view_is_written_without_the_rest_of_its_memory(
    toy: SimpleNamespace, model: nn.Module, tmp_path: Path
) -> None:
    both = torch.randn(2, 64)
    model.model.norm.weight = nn.Parameter(both[0])
    model.model.layers[0].input_layernorm.weight = nn.Parameter(both[1])
    save_sharded_state(model, tmp_path)
    loaded = toy.load(tmp_path, "sharded_state")
    assert torch.equal(loaded.model.norm.weight, both[0])
    assert torch.equal(loaded.model.layers[0].input_layernorm.weight, both[1])


def test_pattern_comes_from_the_extra_config(
    toy: SimpleNamespace, model: nn.Module, tmp_path: Path
) -> None:
    pattern = "state-{part}-of-rank-{rank}.safetensors"
    save_sharded_state(model, tmp_path, pattern=pattern)
    toy.assert_state(toy.load(tmp_path, "sharded_state", extra={"pattern": pattern}), toy.tensors())
    with pytest.raises(ValueError, match="model-rank-0-part"):
        toy.load(tmp_path, "sharded_state")


def test_unknown_extra_key_is_named_with_the_known_one(
    toy: SimpleNamespace, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="does not know patern; it knows pattern"):
        toy.load(tmp_path, "sharded_state", extra={"patern": "x"})


@pytest.mark.parametrize("pattern", ["weights.safetensors", "w-{rank}.safetensors", 3])
def test_pattern_without_rank_or_part_is_refused(
    toy: SimpleNamespace, tmp_path: Path, pattern: object
) -> None:
    with pytest.raises(ValueError, match="pattern"):
        toy.load(tmp_path, "sharded_state", extra={"pattern": pattern})


def test_state_of_several_ranks_is_refused(
    toy: SimpleNamespace, model: nn.Module, tmp_path: Path
) -> None:
    save_sharded_state(model, tmp_path)
    (tmp_path / "model-rank-1-part-0.safetensors").touch()
    with pytest.raises(ValueError, match="several ranks"):
        toy.load(tmp_path, "sharded_state")


def test_truncated_part_is_named(toy: SimpleNamespace, model: nn.Module, tmp_path: Path) -> None:
    save_sharded_state(model, tmp_path)
    file = tmp_path / "model-rank-0-part-0.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"part-0\.safetensors: not a readable"):
        toy.load(tmp_path, "sharded_state")


def test_a_model_without_plain_weights_is_not_written(toy: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"embed_tokens\.weight is not a plain tensor"):
        save_sharded_state(toy.build(), tmp_path)


def test_a_packed_model_is_not_written(model: nn.Module, tmp_path: Path) -> None:
    # What a linear layer does when it packs its weight.
    model.lm_head.weight = None
    with pytest.raises(ValueError, match=r"lm_head\.weight is not a plain tensor"):
        save_sharded_state(model, tmp_path)
