"""The packed kernel computes what F.linear computes, and is chosen where it can run."""

from __future__ import annotations

import pytest
import torch

from app.kernels.capability import CpuCapability, detect_cpu_capability
from app.kernels.prepacked_linear import (
    choose_prefill_kernel,
    prepack_weight,
    prepacked_linear,
    prepacked_linear_reference,
)

MODERN = CpuCapability(
    has_onednn=True, has_avx2=True, has_avx512=True, has_avx512_bf16=True, has_avx512_vnni=True
)


@pytest.mark.skipif(
    choose_prefill_kernel(torch.bfloat16, torch.device("cpu"), detect_cpu_capability()) == "torch",
    reason="this CPU has no bfloat16 products",
)
@pytest.mark.parametrize("num_rows", [1, 3, 8, 40])
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_equals_plain(num_rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 64).bfloat16()
    bias = torch.randn(96).bfloat16() if has_bias else None
    x = torch.randn(num_rows, 64).bfloat16()
    packed = prepacked_linear(x, prepack_weight(weight), bias)
    expected = prepacked_linear_reference(x, weight, bias)
    assert packed.dtype == torch.bfloat16
    torch.testing.assert_close(packed, expected, atol=6e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "device", "capability", "kernel"),
    [
        (torch.bfloat16, "cpu", MODERN, "onednn_bf16"),
        (torch.bfloat16, "cpu", CpuCapability(has_onednn=True, has_amx_bf16=True), "onednn_bf16"),
        (torch.bfloat16, "cpu", CpuCapability(has_onednn=True, has_avx512=True), "torch"),
        (torch.bfloat16, "cpu", CpuCapability(has_avx512_bf16=True), "torch"),
        (torch.bfloat16, "cpu", CpuCapability(), "torch"),
        (torch.bfloat16, "cuda", MODERN, "torch"),
        (torch.float32, "cpu", MODERN, "torch"),
        (torch.float16, "cpu", MODERN, "torch"),
    ],
)
def test_choice(dtype: torch.dtype, device: str, capability: CpuCapability, kernel: str) -> None:
    assert choose_prefill_kernel(dtype, torch.device(device), capability) == kernel
