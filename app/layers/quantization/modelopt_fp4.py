"""Linear layers of several experts from a ModelOpt NVFP4 checkpoint, fused into one.

The fused layer has one global weight scale where the checkpoint has one for each expert
(algorithms.md 4.4). Random weights cannot satisfy that, so the rule depends on the load format of
the model that is being loaded: its own `LoadConfig`, never another model's.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from app.config.load_config import LoadConfig
from app.layers.quantization.nvfp4 import BLOCK_SIZE, FP4_MAX, FP8_MAX, dequantize_nvfp4


class ModelOptFp4Experts(nn.Module):
    """`num_experts` weights `[out_features, in_features]` in NVFP4.

    Checkpoint tensors: `weight [E, out, in/2]` uint8, `weight_scale [E, out, in/16]` fp8 e4m3,
    `weight_scale_2 [E]` and `input_amax [1]` float32. After `process_weights_after_loading` they
    are gone; `dense_weight [E, out, in]` in `dtype`, `global_scale` and `input_scale` stay.
    `input_scale` is for kernels that quantise activations; dense products do not need it.
    """

    weight: nn.Parameter
    weight_scale: nn.Parameter
    weight_scale_2: nn.Parameter
    input_amax: nn.Parameter
    dense_weight: torch.Tensor | None
    global_scale: torch.Tensor | None
    input_scale: torch.Tensor | None

    def __init__(
        self, num_experts: int, in_features: int, out_features: int, *, dtype: torch.dtype
    ) -> None:
        super().__init__()
        if in_features % BLOCK_SIZE:
            raise ValueError(
                f"NVFP4 needs input sizes that are multiples of {BLOCK_SIZE}, got {in_features}"
            )
        self.dtype = dtype
        rows = (num_experts, out_features)
        self._declare("weight", torch.empty(*rows, in_features // 2, dtype=torch.uint8))
        scales = torch.empty(*rows, in_features // BLOCK_SIZE, dtype=torch.float8_e4m3fn)
        self._declare("weight_scale", scales)
        self._declare("weight_scale_2", torch.empty(num_experts, dtype=torch.float32))
        self._declare("input_amax", torch.empty(1, dtype=torch.float32))
        for name in ("dense_weight", "global_scale", "input_scale"):
            self.register_buffer(name, None, persistent=False)

    def _declare(self, name: str, tensor: torch.Tensor) -> None:
        self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def each(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, in] -> [T, E, out]`: the same rows through every expert, in one product."""
        assert self.dense_weight is not None
        num_experts, out_features, _ = self.dense_weight.shape
        output = functional.linear(x, self.dense_weight.flatten(0, 1))
        return output.view(-1, num_experts, out_features)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, E, in] -> [T, out]`: each expert's own rows, outputs added up."""
        assert self.dense_weight is not None
        return torch.einsum("tei,eoi->to", x, self.dense_weight)

    def process_weights_after_loading(self, load_config: LoadConfig) -> None:
        """Settle the scales and unpack the weight. Raises ValueError if the scales differ."""
        self.global_scale = single_global_scale(self.weight_scale_2, load_config)
        self.input_scale = input_scale(self.input_amax)
        self.dense_weight = dequantize_nvfp4(
            self.weight, self.weight_scale, self.global_scale, self.dtype
        )
        for name in ("weight", "weight_scale", "weight_scale_2", "input_amax"):
            self.register_parameter(name, None)


def single_global_scale(weight_scale_2: torch.Tensor, load_config: LoadConfig) -> torch.Tensor:
    """The one value (scalar, float32) of all entries of `weight_scale_2`.

    Under load format dummy entries that differ are noise and become 1; in a real checkpoint they
    are a ValueError, because one scale would silently change the experts that had another.
    """
    flat = weight_scale_2.flatten().float()
    if load_config.load_format == "dummy" and not _all_equal(flat):
        flat = torch.ones_like(flat)
    if not _all_equal(flat):
        raise ValueError(
            "weight_scale_2: the fused shared experts take a single global weight scale, but the "
            f"checkpoint holds {flat.tolist()[:4]}; reshard it to a single global scale"
        )
    return flat[0].clone()


def input_scale(amax: torch.Tensor) -> torch.Tensor:
    """ModelOpt's activation scale, amax / (6 * 448); 1 where nothing was calibrated (amax <= 0)."""
    scale = amax.flatten().float()[0] / (FP4_MAX * FP8_MAX)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _all_equal(flat: torch.Tensor) -> bool:
    return bool((flat == flat[0]).all())
