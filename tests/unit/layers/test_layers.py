"""Layers against the modules of transformers and of torch that they stand for."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from app.config.load_config import LoadConfig
from app.kernels.capability import detect_cpu_capability
from app.kernels.prepacked_linear import choose_prefill_kernel
from app.layers.activation import activation_function
from app.layers.embedding import TokenEmbedding
from app.layers.head import LMHead
from app.layers.linear import Linear, MergedLinear, QKVLinear
from app.layers.rms_norm import RMSNorm

LOAD_CONFIG = LoadConfig(load_format="auto", download_dir=None, extra_config={}, revision=None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_bit_equal_to_transformers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    expected, norm = LlamaRMSNorm(64, eps=1e-5).to(dtype), RMSNorm(64, eps=1e-5, dtype=dtype)
    weight = torch.randn(64).to(dtype)
    expected.weight.data.copy_(weight)
    norm.weight.data.copy_(weight)
    x = torch.randn(5, 64).to(dtype)
    before = x.clone()
    assert torch.equal(norm(x), expected(x))
    assert torch.equal(x, before)


def test_fused_layers_say_where_the_rows_of_each_part_lie() -> None:
    merged = MergedLinear(
        4, {"gate_proj": 3, "up_proj": 5}, bias=True, dtype=torch.float32, kernel="torch"
    )
    assert dict(merged.shard_slices) == {"gate_proj": slice(0, 3), "up_proj": slice(3, 8)}
    qkv = QKVLinear(
        4, num_heads=4, num_kv_heads=2, head_dim=8, bias=False, dtype=torch.float32, kernel="torch"
    )
    assert dict(qkv.shard_slices) == {
        "q_proj": slice(0, 32),
        "k_proj": slice(32, 48),
        "v_proj": slice(48, 64),
    }


def make_linear(kernel: str, dtype: torch.dtype = torch.bfloat16) -> Linear:
    torch.manual_seed(0)
    linear = Linear(32, 64, bias=True, dtype=dtype, kernel=kernel)
    for parameter in linear.parameters():
        parameter.data.copy_(torch.randn(parameter.shape))
    return linear


needs_bf16 = pytest.mark.skipif(
    choose_prefill_kernel(torch.bfloat16, torch.device("cpu"), detect_cpu_capability()) == "torch",
    reason="this CPU has no bfloat16 products",
)


@needs_bf16
def test_packing_keeps_the_result_and_drops_the_plain_weight() -> None:
    linear = make_linear("onednn_bf16")
    x = torch.randn(3, 32).bfloat16()
    before = linear(x)
    linear.process_weights_after_loading(LOAD_CONFIG)
    torch.testing.assert_close(linear(x), before, atol=6e-2, rtol=2e-2)
    assert [name for name, _ in linear.named_parameters()] == ["bias"]


def test_a_weight_that_cannot_be_packed_stays() -> None:
    linear = make_linear("onednn_bf16", torch.float32)
    linear.process_weights_after_loading(LOAD_CONFIG)
    assert linear.weight is not None


@needs_bf16
def test_a_tied_head_leaves_the_embedding_its_rows() -> None:
    embedding = TokenEmbedding(16, 32, dtype=torch.bfloat16)
    embedding.weight.data.normal_()
    head = LMHead(32, 16, bias=False, dtype=torch.bfloat16, kernel="onednn_bf16")
    head.tie(embedding)
    rows = embedding(torch.tensor([3, 5]))
    head.process_weights_after_loading(LOAD_CONFIG)
    assert torch.equal(embedding(torch.tensor([3, 5])), rows)
    logits = head(rows)
    assert logits.dtype == torch.float32
    expected = (rows @ embedding.weight.T).float()
    torch.testing.assert_close(logits, expected, atol=0.2, rtol=2e-2)


def test_unknown_activations_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"hidden_act 'mish'.*gelu.*silu"):
        activation_function("mish")
