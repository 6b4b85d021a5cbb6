"""Rotary frequencies of each scaling kind, as transformers computes them."""

from __future__ import annotations

import math

import torch

from app.layers.rope_parameters import RopeParameters

# Explicit everywhere: models are built under torch.device("meta"), their frequencies are real.
_CPU = torch.device("cpu")


def rope_angles(rope: RopeParameters, head_dim: int, num_positions: int) -> torch.Tensor:
    """`[num_positions, head_dim / 2]` float32: position times frequency."""
    positions = torch.arange(num_positions, dtype=torch.float32, device=_CPU)
    if rope.kind == "dynamic":
        return positions[:, None] * _dynamic_frequencies(rope, head_dim, num_positions)
    return positions[:, None] * _frequencies(rope, head_dim)


def rope_amplitude(rope: RopeParameters) -> float:
    """What cosine and sine are multiplied with: yarn's attention factor, 1 for other kinds."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = _yarn_factor(rope)
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(factor, rope.mscale) / _yarn_mscale(factor, rope.mscale_all_dim)
    return _yarn_mscale(factor, 1.0)


def _frequencies(rope: RopeParameters, head_dim: int) -> torch.Tensor:
    plain = 1.0 / rope.theta ** _exponents(head_dim)
    match rope.kind:
        case "linear":
            assert rope.factor is not None
            return plain / rope.factor
        case "llama3":
            return _llama3_frequencies(rope, plain)
        case "yarn":
            return _yarn_frequencies(rope, head_dim)
        case _:
            return plain


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32, device=_CPU) / head_dim


def _dynamic_frequencies(rope: RopeParameters, head_dim: int, num_positions: int) -> torch.Tensor:
    """`[num_positions, head_dim / 2]`: position p has the base of a sequence that ends at p.

    transformers takes the base of the longest position in a forward, so a prompt's result depends
    on how it is cut, on what it is batched with, and on how many draft tokens ride along. A base
    for each position is free of that. It equals transformers within the original length and, beyond
    it, when tokens come one by one.
    """
    assert rope.factor is not None
    positions = torch.arange(num_positions, dtype=torch.float64, device=_CPU)
    length = (positions + 1).clamp(min=rope.original_length)
    stretch = rope.factor * length / rope.original_length - (rope.factor - 1)
    base = rope.theta * stretch ** (head_dim / (head_dim - 2))
    return 1.0 / base.float()[:, None] ** _exponents(head_dim)


def _llama3_frequencies(rope: RopeParameters, plain: torch.Tensor) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between interpolated."""
    assert rope.factor is not None
    wavelength = 2 * math.pi / plain
    longest = rope.original_length / rope.low_freq_factor
    shortest = rope.original_length / rope.high_freq_factor
    smooth = (rope.original_length / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * plain / rope.factor + smooth * plain
    scaled = torch.where(wavelength > longest, plain / rope.factor, plain)
    is_between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(is_between, between, scaled)


def _yarn_frequencies(rope: RopeParameters, head_dim: int) -> torch.Tensor:
    """NTK by parts (https://arxiv.org/abs/2309.00071, section 3.2)."""
    wave = rope.theta ** _exponents(head_dim)
    low, high = (_yarn_dimension(rope, head_dim, beta) for beta in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    index = torch.arange(head_dim // 2, dtype=torch.float32, device=_CPU)
    interpolated = ((index - low) / (high - low)).clamp(0, 1)
    kept = 1 - interpolated
    return 1.0 / (_yarn_factor(rope) * wave) * (1 - kept) + 1.0 / wave * kept


def _yarn_dimension(rope: RopeParameters, head_dim: int, num_rotations: float) -> float:
    """The dimension whose wave turns `num_rotations` times over the original length."""
    turns = math.log(rope.original_length / (num_rotations * 2 * math.pi))
    return head_dim * turns / (2 * math.log(rope.theta))


def _yarn_factor(rope: RopeParameters) -> float:
    return rope.length_ratio if rope.factor is None else rope.factor


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
