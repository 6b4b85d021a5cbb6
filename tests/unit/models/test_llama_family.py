"""Logits of the native models against transformers, on tiny random checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.attention.registry import create_attention_backend
from app.config.load_config import build_load_config
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.kernels.capability import detect_cpu_capability
from app.kernels.prepacked_linear import choose_prefill_kernel
from app.loading.loader import create_model_loader
from app.memory.token_to_kv_pool import KVGeometry, TokenToKVPool
from app.models.base import BaseCausalLM
from app.models.registry import resolve_model_class
from app.testing.checkpoints import write_checkpoint

LENGTH = 40
TOLERANCE = 1e-4


def rope(rope_type: str, **values: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10_000.0, **values}}


# name -> (family, what differs from it)
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-all-heads-are-kv-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-attention-bias": ("llama", {"attention_bias": True}),
    "llama-mlp-bias": ("llama", {"mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 24}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen2-window-in-some-layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-bias-window": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 1,
        },
    ),
    "rope-linear": ("llama", rope("linear", factor=4.0)),
    "rope-dynamic": ("llama", rope("dynamic", factor=4.0)),
    "rope-llama3": (
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "rope-yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "rope-yarn-mscale": (
        "qwen2",
        rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=16,
            mscale=1.0,
            mscale_all_dim=0.5,
            beta_fast=16,
            beta_slow=2,
            truncate=False,
        ),
    ),
    "rope-yarn-attention-factor": (
        "llama",
        rope("yarn", factor=2.0, original_max_position_embeddings=16, attention_factor=0.7),
    ),
}


@dataclass
class Pair:
    """A checkpoint in transformers and in this engine, with a cache whose slots are in disorder."""

    reference: PreTrainedModel
    model: BaseCausalLM
    tokens: torch.Tensor
    slots: torch.Tensor
    pool: TokenToKVPool

    def extend(self, start: int, end: int, backend: str = "torch_paged") -> torch.Tensor:
        """Logits of tokens `start .. end-1` behind a cache that holds those before."""
        mode = ForwardMode.DECODE if end - start == 1 else ForwardMode.EXTEND
        batch = ForwardBatch(
            mode=mode,
            input_ids=self.tokens[start:end],
            positions=torch.arange(start, end),
            out_cache_loc=self.slots[start:end],
            spans=(AttentionSpan(0, end - start, start, self.slots[:end]),),
            token_to_kv_pool=self.pool,
            attn_backend=create_attention_backend(backend),
        )
        return run(self.model, batch)


def run(model: BaseCausalLM, batch: ForwardBatch) -> torch.Tensor:
    with torch.inference_mode():
        return model.compute_logits(model(batch))


def load(
    path: Path,
    dtype: str = "float32",
    linear_kernel: str = "torch",
    load_format: str = "auto",
) -> BaseCausalLM:
    server_args = ServerArgs(model_path=str(path), dtype=dtype, load_format=load_format)
    model_config = ModelConfig.from_server_args(server_args)
    loader = create_model_loader(build_load_config(server_args), model_config)
    model_class = resolve_model_class(model_config, "native")
    return loader.load_model(model_config, model_class, linear_kernel, torch.device("cpu"))


def make_pair(path: Path) -> Pair:
    model = load(path)
    generator = torch.Generator().manual_seed(0)
    return Pair(
        reference=AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ),
        model=model,
        tokens=torch.randint(6, model.model_config.vocab_size, (LENGTH,), generator=generator),
        slots=torch.randperm(2 * LENGTH, generator=generator)[:LENGTH] + 1,
        pool=TokenToKVPool(2 * LENGTH + 1, model.kv_geometry, torch.float32, torch.device("cpu")),
    )


def write(path: Path, family: str, overrides: Mapping[str, Any]) -> Path:
    return write_checkpoint(
        path,
        family,
        vocab_size=96,
        num_layers=3,
        max_position_embeddings=64,
        overrides=overrides,
    )


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, overrides = CASES[request.param]
    return make_pair(write(tmp_path_factory.mktemp("checkpoint"), family, overrides))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == torch.float32
    assert (found - expected).abs().max().item() < TOLERANCE


@pytest.mark.parametrize(
    "cuts",
    [(0, LENGTH), (0, 13, 30, *range(31, LENGTH + 1))],
    ids=["whole", "two-chunks-and-decode"],
)
def test_logits_equal_those_of_transformers(pair: Pair, cuts: Sequence[int]) -> None:
    with torch.no_grad():
        expected = pair.reference(pair.tokens[None]).logits[0]
    assert_close(torch.cat([pair.extend(a, b) for a, b in pairwise(cuts)]), expected)


def test_the_dense_backend_gives_the_same_logits(pair: Pair) -> None:
    cuts = (0, 30, *range(31, LENGTH + 1))
    paged = torch.cat([pair.extend(a, b) for a, b in pairwise(cuts)])
    dense = torch.cat([pair.extend(a, b, "torch_dense") for a, b in pairwise(cuts)])
    assert_close(dense, paged)


def test_dynamic_rope_beyond_its_length_equals_token_by_token_decoding(tmp_path: Path) -> None:
    """However the tokens are cut: transformers itself gives this result only one by one."""
    overrides = {**rope("dynamic", factor=4.0), "max_position_embeddings": 16}
    pair = make_pair(write(tmp_path, "llama", overrides))
    cache, expected = None, []
    with torch.no_grad():
        for position in range(LENGTH):
            output = pair.reference(
                pair.tokens[None, position : position + 1], cache=cache, use_cache=True
            )
            cache = output.past_key_values
            expected.append(output.logits[0])
    assert_close(pair.extend(0, LENGTH), torch.cat(expected))
    chunks = [pair.extend(a, b) for a, b in pairwise((0, 20, *range(21, LENGTH + 1)))]
    assert_close(torch.cat(chunks), torch.cat(expected))


def test_requests_in_one_forward_do_not_meet(tmp_path: Path) -> None:
    pair = make_pair(write(tmp_path, "llama", {}))
    slots = torch.randperm(2 * LENGTH, generator=torch.Generator().manual_seed(1)) + 1
    first, second = slots[:20], slots[20:]
    alone = [pair.extend(0, 20), pair.extend(20, 21)]
    pair.slots = first
    pair.extend(0, 20)
    batch = ForwardBatch(
        mode=ForwardMode.EXTEND,
        input_ids=torch.cat((pair.tokens[20:21], pair.tokens[:20])),
        positions=torch.cat((torch.tensor([20]), torch.arange(20))),
        out_cache_loc=torch.cat((second[20:21], second[:20])),
        spans=(
            AttentionSpan(0, 1, 20, torch.cat((first, second[20:21]))),
            AttentionSpan(1, 20, 0, second[:20]),
        ),
        token_to_kv_pool=pair.pool,
        attn_backend=create_attention_backend("torch_paged"),
    )
    logits = run(pair.model, batch)
    assert_close(logits[:1], alone[1])
    assert_close(logits[1:], alone[0])


def test_plain_models_refuse_a_quantization(tmp_path: Path) -> None:
    model_config = load(write(tmp_path, "llama", {})).model_config
    quantized = replace(model_config, quantization="modelopt_fp4")
    with pytest.raises(ValueError, match=r"LlamaForCausalLM.*modelopt_fp4"), torch.device("meta"):
        resolve_model_class(quantized, "native")(quantized)


def test_geometry_and_names(tmp_path: Path) -> None:
    path = write(tmp_path, "qwen3", {"tie_word_embeddings": True})
    model = load(path)
    assert model.kv_geometry == (KVGeometry(num_kv_heads=2, head_dim=16),) * 3
    assert model.map_weight_name("lm_head.weight") is None
    assert model.map_weight_name("model.layers.0.self_attn.rotary_emb.inv_freq") is None


@pytest.mark.skipif(
    choose_prefill_kernel(torch.bfloat16, torch.device("cpu"), detect_cpu_capability()) == "torch",
    reason="this CPU has no bfloat16 products",
)
@pytest.mark.parametrize("tie_word_embeddings", [False, True])
def test_packed_weights_give_the_logits_of_plain_ones(
    tmp_path: Path, tie_word_embeddings: bool
) -> None:
    path = write(tmp_path, "llama", {"tie_word_embeddings": tie_word_embeddings})
    pair = make_pair(path)
    logits = []
    for kernel, load_format in (
        ("torch", "auto"),
        ("onednn_bf16", "auto"),
        ("onednn_bf16", "layered"),
    ):
        pair.model = load(path, "bfloat16", kernel, load_format)
        pair.pool = TokenToKVPool(
            2 * LENGTH + 1, pair.model.kv_geometry, torch.bfloat16, torch.device("cpu")
        )
        logits.append(pair.extend(0, LENGTH))
    # A few bfloat16 steps of logits with a standard deviation of 2.
    assert (logits[0] - logits[1]).abs().max().item() < 0.25
    assert torch.equal(logits[1], logits[2])


def test_a_packed_kernel_without_effect_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load(write(tmp_path, "llama", {}), "float32", "onednn_bf16")
    assert "onednn_bf16 has no effect" in caplog.text
