"""Dummy weights: every element its own noise, decided by the parameter's name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from app.loading.dummy_loader import fill_with_noise


def test_two_loads_agree(toy: SimpleNamespace, tmp_path: Path) -> None:
    first, second = toy.load(tmp_path, "dummy"), toy.load(tmp_path, "dummy")
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_noise_depends_on_the_name_and_not_on_what_came_before() -> None:
    a, b, c = torch.empty(2, 8), torch.empty(2, 8), torch.empty(2, 8)
    fill_with_noise("model.norm.weight", a, torch.empty(64))
    fill_with_noise("lm_head.weight", b, torch.empty(64))
    fill_with_noise("model.norm.weight", c, torch.ones(64))
    assert torch.equal(a, c)
    assert not torch.equal(a, b)


def test_every_element_differs(toy: SimpleNamespace, tmp_path: Path) -> None:
    for name, parameter in toy.load(tmp_path, "dummy").named_parameters():
        assert parameter.unique().numel() > 0.99 * parameter.numel(), name
        assert parameter.abs().max() <= 1e-3
        assert parameter.mean().abs() < 3e-4


def test_the_global_generator_is_left_alone(toy: SimpleNamespace, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    toy.load(tmp_path, "dummy")
    assert torch.equal(before, torch.get_rng_state())


def test_every_dtype_of_a_quantised_layer_is_filled() -> None:
    for dtype in (torch.uint8, torch.int64, torch.float8_e4m3fn, torch.bfloat16):
        tensor = torch.zeros(64, 64, dtype=dtype)
        fill_with_noise("weight", tensor, torch.empty(1024))
        assert tensor.float().unique().numel() > 2, dtype
        assert tensor.float().isfinite().all(), dtype
