"""Random numbers as a hash of seed, position and column: no generator, hence no order of draws."""

from __future__ import annotations

from enum import IntEnum

import torch

_MASK_64 = (1 << 64) - 1


def _signed(value: int) -> int:
    """The int64 with the low 64 bits of `value`."""
    value &= _MASK_64
    return value - (1 << 64) if value >> 63 else value


# The increment and the multipliers of SplitMix64 (Steele, Lea, Flood 2014).
_INCREMENT = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)
# The cast of a larger value to float32 would round to 1, past the end of a CDF.
_LARGEST_FLOAT32 = 1.0 - 2.0**-24


class DrawDomain(IntEnum):
    """What a number is drawn for. Domains are independent of each other: were the draft to propose
    with the numbers that decide acceptance, neither would be random given the other."""

    SAMPLE = 1
    ACCEPT = 2
    DRAFT = 3


def hash_uniform(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    columns: torch.Tensor,
    domain: int,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Uniform numbers for `seeds [b]`, `positions [b]` and `columns [c]` (int64), `[b, c]`.

    float32 lies in [0, 1 - 2^-24] with steps of 2^-24, float64 in (0, 1) with steps of 2^-52.
    A value depends on its seed, position, column and domain alone, not on what else is in the
    batch.
    """
    key = _mix(seeds + _signed(domain * _INCREMENT))
    key = _mix(key + (positions + 1) * _INCREMENT)
    bits = _mix(key[:, None] + (columns + 1) * _INCREMENT)
    if dtype == torch.float64:
        # Half a step up keeps zero out, whose logarithm is infinite.
        return _shift_right(bits, 12).double().add_(0.5).mul_(2.0**-52)
    uniform = _shift_right(bits, 40).to(torch.float32).mul_(2.0**-24)
    return uniform.clamp_(max=_LARGEST_FLOAT32)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser: every input bit changes every output bit with probability 1/2."""
    bits = (bits ^ _shift_right(bits, 30)) * _MULTIPLIER_1
    bits = (bits ^ _shift_right(bits, 27)) * _MULTIPLIER_2
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """A logical shift; int64 shifts in copies of the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
