"""A toy Llama: the names and fusions of the real one, without a forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from app.config.load_config import LoadConfig
from app.loading.loader import create_model_loader

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS, VOCAB = 64, 4, 2, 16, 96, 2, 64


class FusedLinear(nn.Module):
    def __init__(self, shards: dict[str, int], in_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.shard_slices: dict[str, slice] = {}
        start = 0
        for name, rows in shards.items():
            self.shard_slices[name] = slice(start, start + rows)
            start += rows
        self.weight = nn.Parameter(torch.empty(start, in_features, dtype=dtype))


class ToyLayer(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.input_layernorm = nn.RMSNorm(HIDDEN, dtype=dtype)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, dtype=dtype)
        self.self_attn = nn.Module()
        self.self_attn.qkv_proj = FusedLinear(
            {"q_proj": q, "k_proj": kv, "v_proj": kv}, HIDDEN, dtype
        )
        self.self_attn.o_proj = nn.Linear(q, HIDDEN, bias=False, dtype=dtype)
        self.mlp = nn.Module()
        self.mlp.gate_up_proj = FusedLinear(
            {"gate_proj": INTERMEDIATE, "up_proj": INTERMEDIATE}, HIDDEN, dtype
        )
        self.mlp.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False, dtype=dtype)


class ToyLlama(nn.Module):
    packed_modules_mapping: ClassVar = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }

    def __init__(self, model_config: SimpleNamespace, linear_kernel: str = "torch") -> None:
        super().__init__()
        dtype = model_config.dtype
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCAB, HIDDEN, dtype=dtype)
        self.model.layers = nn.ModuleList(ToyLayer(dtype) for _ in range(LAYERS))
        self.model.norm = nn.RMSNorm(HIDDEN, dtype=dtype)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False, dtype=dtype)
        if model_config.hf_config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.is_tied = model_config.hf_config.tie_word_embeddings
        self.processed: list[tuple[object, str]] = []

    def map_weight_name(self, name: str) -> str | None:
        is_tied_head = self.is_tied and name == "lm_head.weight"
        return None if is_tied_head or name.endswith("rotary_emb.inv_freq") else name

    def process_weights_after_loading(self, load_config: LoadConfig) -> None:
        for module in self.modules():
            self.process_module_after_loading(module, load_config)

    def process_module_after_loading(self, module: nn.Module, load_config: LoadConfig) -> None:
        own = (*module._parameters.values(), *module._buffers.values())
        assert not any(tensor is not None and tensor.is_meta for tensor in own)
        self.processed.append((module, load_config.load_format))


def checkpoint_tensors(seed: int = 0, *, is_tied: bool = False) -> dict[str, torch.Tensor]:
    """Random tensors of the toy under the names of transformers, float32."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors = {
        "model.embed_tokens.weight": noise(VOCAB, HIDDEN),
        "model.norm.weight": noise(HIDDEN),
    }
    if not is_tied:
        tensors["lm_head.weight"] = noise(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": noise(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": noise(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": noise(q, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": noise(kv, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": noise(kv, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": noise(HIDDEN, q),
            f"{prefix}.mlp.gate_proj.weight": noise(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": noise(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": noise(HIDDEN, INTERMEDIATE),
        }
    return tensors


def expected_state(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the model must hold: the fusions done with torch.cat, independent of the loader."""
    state = dict(tensors)
    for layer in range(LAYERS):
        for module, fused, shards in (
            ("self_attn", "qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("mlp", "gate_up_proj", ("gate_proj", "up_proj")),
        ):
            prefix = f"model.layers.{layer}.{module}"
            state[f"{prefix}.{fused}.weight"] = torch.cat(
                [state.pop(f"{prefix}.{shard}.weight") for shard in shards]
            )
    return state


def assert_state(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """`model` holds exactly the checkpoint `tensors`, in its own dtype."""
    found = dict(model.state_dict())
    expected = expected_state(tensors)
    if model.is_tied:
        assert torch.equal(found.pop("lm_head.weight"), found["model.embed_tokens.weight"])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.to(found[name].dtype)), name


@pytest.fixture
def toy() -> SimpleNamespace:
    """The helpers above, for test modules that cannot import this one."""
    return SimpleNamespace(
        Model=ToyLlama,
        tensors=checkpoint_tensors,
        assert_state=assert_state,
        config=toy_config,
        build=build_on_meta,
        load=load_toy,
    )


def toy_config(
    path: Path = Path(), *, is_tied: bool = False, dtype: torch.dtype = torch.float32
) -> SimpleNamespace:
    hf_config = SimpleNamespace(tie_word_embeddings=is_tied, rope_parameters=None)
    return SimpleNamespace(model_path=path, dtype=dtype, hf_config=hf_config)


def build_on_meta(**config: object) -> ToyLlama:
    with torch.device("meta"):
        return ToyLlama(toy_config(**config))


def load_toy(
    path: Path,
    load_format: str,
    *,
    model_class: Callable[..., nn.Module] = ToyLlama,
    extra: dict[str, object] | None = None,
    **config: object,
) -> ToyLlama:
    load_config = LoadConfig(
        load_format=load_format, download_dir=None, extra_config=extra or {}, revision=None
    )
    model_config = toy_config(path, **config)
    loader = create_model_loader(load_config, model_config)
    return loader.load_model(model_config, model_class, "torch", torch.device("cpu"))
