"""NVFP4 shared experts: numerics, and scales that follow the load format of the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.attention.registry import create_attention_backend
from app.config.load_config import LoadConfig, build_load_config
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.layers.quantization.modelopt_fp4 import ModelOptFp4Experts
from app.layers.quantization.nvfp4 import dequantize_nvfp4, quantize_nvfp4
from app.loading.loader import create_model_loader
from app.memory.token_to_kv_pool import TokenToKVPool
from app.models.registry import resolve_model_class
from app.models.shared_experts import SharedExpertsForCausalLM
from app.testing.shared_experts_checkpoint import (
    quantize_experts,
    write_shared_experts_checkpoint,
)

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def load(path: Path, load_format: str = "auto", **fields: object) -> SharedExpertsForCausalLM:
    server_args = ServerArgs(model_path=str(path), load_format=load_format, **fields)
    model_config = ModelConfig.from_server_args(server_args)
    loader = create_model_loader(build_load_config(server_args), model_config)
    model_class = resolve_model_class(model_config, "auto")
    model = loader.load_model(model_config, model_class, "torch", torch.device("cpu"))
    assert isinstance(model, SharedExpertsForCausalLM)
    return model


def fused_layers(model: SharedExpertsForCausalLM) -> list[ModelOptFp4Experts]:
    return [module for module in model.modules() if isinstance(module, ModelOptFp4Experts)]


def load_config(load_format: str) -> LoadConfig:
    return LoadConfig(load_format=load_format, download_dir=None, extra_config={}, revision=None)


def decode(packed: list[int], block_scales: list[float], global_scale: float) -> list[float]:
    """One row by hand: nibble by nibble, low half first."""
    values = []
    for position in range(2 * len(packed)):
        code = packed[position // 2] >> (4 * (position % 2)) & 0xF
        value = FP4[code & 7] * (-1 if code & 8 else 1)
        values.append(value * block_scales[position // 16] * global_scale)
    return values


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared_experts_checkpoint(tmp_path_factory.mktemp("equal"))


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared_experts_checkpoint(
        tmp_path_factory.mktemp("unequal"), has_single_scale=False
    )


def test_every_code_decodes_to_its_value() -> None:
    packed = torch.tensor([[17 * code % 256 for code in range(256)]], dtype=torch.uint8)
    packed[0] = torch.arange(256)
    scales = torch.linspace(0.25, 8, 32).to(torch.float8_e4m3fn)[None]
    found = dequantize_nvfp4(packed, scales, torch.tensor(0.5), torch.float32)
    expected = decode(packed[0].tolist(), scales[0].float().tolist(), 0.5)
    assert found[0].tolist() == pytest.approx(expected)


def test_quantising_is_off_by_half_a_step_at_most() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    global_scale = weight.abs().max() / (6 * 448)
    packed, scales = quantize_nvfp4(weight, global_scale)
    found = dequantize_nvfp4(packed, scales, global_scale, torch.float32)
    # The widest gap between FP4 values is 2, and fp8 rounds a block's scale by 1/16 at most.
    bound = weight.view(8, 4, 16).abs().amax(-1, keepdim=True) / 6 * 17 / 16
    assert ((found - weight).view(8, 4, 16).abs() <= bound * 1.01).all()
    again = quantize_nvfp4(found, global_scale)
    assert torch.equal(dequantize_nvfp4(*again, global_scale, torch.float32), found)


def test_experts_compute_what_the_checkpoint_says(checkpoint: Path) -> None:
    model = load(checkpoint)
    raw = load_file(checkpoint / "model.safetensors")
    dense = {}
    for name in ("w13", "w2"):
        prefix = f"model.layers.1.mlp.{name}"
        packed, scales = raw[f"{prefix}.weight"], raw[f"{prefix}.weight_scale"].float()
        scale_2 = raw[f"{prefix}.weight_scale_2"]
        dense[name] = torch.tensor(
            [
                [
                    decode(packed[e, row].tolist(), scales[e, row].tolist(), scale_2[e].item())
                    for row in range(packed.shape[1])
                ]
                for e in range(packed.shape[0])
            ]
        )
    hidden = torch.randn(5, 32)
    expected = torch.zeros(5, 32)
    for w13, w2 in zip(dense["w13"], dense["w2"], strict=True):
        gate, up = hidden @ w13[:64].T, hidden @ w13[64:].T
        expected += (functional.silu(gate) * up) @ w2.T
    found = model.model.layers[1].mlp(hidden)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_real_and_equal_scales_are_kept(checkpoint: Path) -> None:
    raw = load_file(checkpoint / "model.safetensors")
    for layer, module in enumerate(fused_layers(load(checkpoint))[::2]):
        expected = raw[f"model.layers.{layer}.mlp.w13.weight_scale_2"][0]
        assert module.global_scale == expected != 1
        assert module.input_scale == pytest.approx(6.0 / (6 * 448))


def test_real_and_unequal_scales_are_an_error(unequal: Path) -> None:
    with pytest.raises(ValueError, match=r"weight_scale_2.*reshard"):
        load(unequal)


@pytest.mark.parametrize("which", ["checkpoint", "unequal"])
def test_dummy_noise_becomes_one(which: str, request: pytest.FixtureRequest) -> None:
    model = load(request.getfixturevalue(which), "dummy")
    assert {float(module.global_scale) for module in fused_layers(model)} == {1.0}
    assert all(float(module.input_scale) > 0 for module in fused_layers(model))


def test_layered_loading_gives_the_same_weights(checkpoint: Path) -> None:
    for plain, layered in zip(
        fused_layers(load(checkpoint)), fused_layers(load(checkpoint, "layered")), strict=True
    ):
        assert torch.equal(plain.dense_weight, layered.dense_weight)


def test_layered_loading_does_not_excuse_unequal_scales(unequal: Path) -> None:
    with pytest.raises(ValueError, match="reshard"):
        load(unequal, "layered")


@pytest.mark.parametrize(
    ("amax", "scale"), [(0.0, 1.0), (-1.0, 1.0), (2688.0, 1.0), (13.44, 0.005)]
)
def test_input_scale_of_an_uncalibrated_layer_is_one(amax: float, scale: float) -> None:
    layer = ModelOptFp4Experts(2, 32, 16, dtype=torch.float32)
    values = quantize_experts(torch.randn(2, 16, 32), has_single_scale=True)
    for name, value in (*values.items(), ("input_amax", torch.tensor([amax]))):
        getattr(layer, name).copy_(value)
    layer.process_weights_after_loading(load_config("auto"))
    assert layer.input_scale == pytest.approx(scale)


def test_uncalibrated_checkpoint_loads(tmp_path: Path) -> None:
    write_shared_experts_checkpoint(tmp_path, input_amax=0.0)
    assert {float(module.input_scale) for module in fused_layers(load(tmp_path))} == {1.0}


def test_equal_scales_of_a_dummy_layer_are_kept() -> None:
    layer = ModelOptFp4Experts(3, 16, 16, dtype=torch.float32)
    values = quantize_experts(torch.randn(3, 16, 16), has_single_scale=True)
    for name, value in (*values.items(), ("input_amax", torch.tensor([1.0]))):
        getattr(layer, name).copy_(value)
    layer.process_weights_after_loading(load_config("dummy"))
    assert layer.global_scale == values["weight_scale_2"][0]


def test_dummy_draft_beside_a_real_target(checkpoint: Path, unequal: Path) -> None:
    target = load(checkpoint)
    before = [float(module.global_scale) for module in fused_layers(target)]
    draft = load(unequal, "dummy")
    assert {float(module.global_scale) for module in fused_layers(draft)} == {1.0}
    assert [float(module.global_scale) for module in fused_layers(target)] == before
    assert 1.0 not in before


def test_real_draft_beside_a_dummy_target(checkpoint: Path, unequal: Path) -> None:
    target = load(checkpoint, "dummy")
    with pytest.raises(ValueError, match="reshard"):
        load(unequal)
    assert {float(module.global_scale) for module in fused_layers(target)} == {1.0}
    draft = load(checkpoint)
    assert 1.0 not in {float(module.global_scale) for module in fused_layers(draft)}


def test_without_its_quantization_the_model_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="needs modelopt_fp4, got None"):
        load(checkpoint, quantization="unquant")


def test_block_size_must_divide_the_input() -> None:
    with pytest.raises(ValueError, match="multiples of 16, got 24"):
        ModelOptFp4Experts(2, 24, 16, dtype=torch.float32)


def test_logits_equal_a_llama_with_the_experts_side_by_side(checkpoint: Path) -> None:
    model = load(checkpoint)
    layers, geometry = model.model.layers, model.kv_geometry
    with torch.device("meta"):
        config = LlamaConfig.from_pretrained(checkpoint)
        config.intermediate_size *= config.n_shared_experts
        reference = LlamaForCausalLM(config)
    state = load_file(checkpoint / "model.safetensors")
    state = {name: tensor for name, tensor in state.items() if ".mlp." not in name}
    for index, layer in enumerate(layers):
        gate, up = layer.mlp.w13.dense_weight.chunk(2, dim=1)
        down = layer.mlp.w2.dense_weight.permute(1, 0, 2)
        prefix = f"model.layers.{index}.mlp"
        state[f"{prefix}.gate_proj.weight"] = gate.flatten(0, 1)
        state[f"{prefix}.up_proj.weight"] = up.flatten(0, 1)
        state[f"{prefix}.down_proj.weight"] = down.flatten(1)
    reference.load_state_dict(state, assign=True)
    reference.model.rotary_emb = LlamaRotaryEmbedding(config)

    length = 12
    input_ids = torch.arange(40, 40 + length)
    slots = torch.arange(length)
    batch = ForwardBatch(
        mode=ForwardMode.EXTEND,
        input_ids=input_ids,
        positions=slots,
        out_cache_loc=slots,
        spans=(AttentionSpan(0, length, 0, slots, kv_start=0),),
        token_to_kv_pool=TokenToKVPool(length, geometry, torch.float32, torch.device("cpu")),
        attn_backend=create_attention_backend("torch_paged"),
    )
    with torch.inference_mode():
        found = model.compute_logits(model(batch))
        expected = reference(input_ids[None]).logits[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
