"""Writes tiny checkpoints of SharedExpertsForCausalLM: a Llama with NVFP4 shared experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from app.layers.quantization.nvfp4 import FP4_MAX, FP8_MAX, quantize_nvfp4
from app.testing.checkpoints import write_checkpoint

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def write_shared_experts_checkpoint(
    directory: Path,
    *,
    num_experts: int = 2,
    has_single_scale: bool = True,
    input_amax: float = 6.0,
    num_layers: int = 2,
    seed: int = 0,
    **arguments: Any,
) -> Path:
    """Save a random model of `num_experts` shared experts a layer, with a tokenizer.

    `has_single_scale=False` gives each expert a global scale of its own, as a checkpoint has that
    was never resharded. `input_amax` 0 stands for no calibration. `arguments` are those of
    `write_checkpoint`.
    """
    write_checkpoint(directory, "llama", num_layers=num_layers, seed=seed, **arguments)
    file, config_file = directory / "model.safetensors", directory / "config.json"
    tensors = load_file(file)
    generator = torch.Generator().manual_seed(seed + 1)
    for layer in range(num_layers):
        mlp = f"model.layers.{layer}.mlp"
        gate, _, down = (tensors.pop(f"{mlp}.{name}.weight") for name in _PROJECTIONS)
        intermediate, hidden = gate.shape
        for name, rows, columns in (
            ("w13", 2 * intermediate, hidden),
            ("w2", down.shape[0], intermediate),
        ):
            weight = torch.randn(num_experts, rows, columns, generator=generator)
            # Experts of different sizes, so that their own scales differ.
            sizes = torch.linspace(0.5, 1.0, num_experts).view(-1, 1, 1)
            weight *= sizes / (columns * num_experts) ** 0.5
            quantized = quantize_experts(weight, has_single_scale)
            tensors |= {f"{mlp}.{name}.{key}": value for key, value in quantized.items()}
            tensors[f"{mlp}.{name}.input_amax"] = torch.tensor([input_amax])
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config |= {
        "architectures": ["SharedExpertsForCausalLM"],
        "n_shared_experts": num_experts,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    }
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return directory


def quantize_experts(weight: torch.Tensor, has_single_scale: bool) -> dict[str, torch.Tensor]:
    """The checkpoint tensors of `weight [E, out, in]`, with one global scale or one an expert."""
    amax = weight.abs().amax((1, 2))
    if has_single_scale:
        amax = amax.amax().expand(weight.shape[0]).clone()
    scale = amax / (FP4_MAX * FP8_MAX)
    packed, block_scale = quantize_nvfp4(weight, scale.view(-1, 1, 1))
    return {"weight": packed, "weight_scale": block_scale, "weight_scale_2": scale}
