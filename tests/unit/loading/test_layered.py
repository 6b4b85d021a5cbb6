"""Load format layered: one module at a time, and only for models with the hook."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from app.config.load_config import LoadConfig


def test_a_module_is_processed_before_the_next_is_filled(
    toy: SimpleNamespace, tmp_path: Path
) -> None:
    save_file(toy.tensors(), tmp_path / "model.safetensors")
    num_on_meta: list[int] = []

    class Watched(toy.Model):
        def process_module_after_loading(self, module: nn.Module, load_config: LoadConfig) -> None:
            super().process_module_after_loading(module, load_config)
            num_on_meta.append(sum(parameter.is_meta for parameter in self.parameters()))

    toy.load(tmp_path, "layered", model_class=Watched)
    assert num_on_meta == sorted(num_on_meta, reverse=True)
    # Each of the 15 parameters was the only one of its module.
    assert set(num_on_meta) == set(range(15))
    assert num_on_meta[-1] == 0


def test_tied_models_load(toy: SimpleNamespace, tmp_path: Path) -> None:
    tensors = toy.tensors(is_tied=True)
    save_file(tensors, tmp_path / "model.safetensors")
    model = toy.load(tmp_path, "layered", is_tied=True, dtype=torch.bfloat16)
    toy.assert_state(model, tensors)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_without_the_hook_is_refused(toy: SimpleNamespace, tmp_path: Path) -> None:
    class WithoutHook(toy.Model):
        process_module_after_loading = None

    with pytest.raises(ValueError, match=r"layered.*WithoutHook.*use auto"):
        toy.load(tmp_path, "layered", model_class=WithoutHook)


def test_missing_and_left_over_tensors_are_named(toy: SimpleNamespace, tmp_path: Path) -> None:
    tensors = toy.tensors()
    tensors["visual.patch.weight"] = torch.ones(2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"ToyLlama; left over.*visual\.patch\.weight"):
        toy.load(tmp_path, "layered")
    del tensors["visual.patch.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing.*model\.layers\.1\.mlp\.up_proj\.weight"):
        toy.load(tmp_path, "layered")
