"""The additive mask of causal rows, cut from one tensor instead of being built for each forward."""

from __future__ import annotations

import torch

# Rows that attend together. Bounds the mask's memory for long prompts, and lets a block skip the
# keys behind its last row.
MAX_BLOCK_ROWS = 128
_MIN_COLUMNS = 1024


class CausalBias:
    """Masks for up to `MAX_BLOCK_ROWS` consecutive rows, each repeated for `group_size` heads.

    Whether row r sees a key depends only on the distance between them, so every block's mask is a
    window of the same tensor; it grows (by doubling) with the longest request seen.
    """

    def __init__(
        self,
        group_size: int,
        sliding_window: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._group_size = group_size
        self._sliding_window = sliding_window
        self._dtype = dtype
        self._device = device
        self._bias = self._build(_MIN_COLUMNS)

    def view(self, num_rows: int, num_keys: int) -> torch.Tensor:
        """`[1, 1, num_rows * group_size, num_keys]`, 0 where seen and -inf elsewhere.

        The last key is the last row's own; rows of one query position lie together.
        """
        assert num_rows <= MAX_BLOCK_ROWS, "blocks are cut to MAX_BLOCK_ROWS"
        num_earlier = num_keys - num_rows
        if num_earlier > self._num_earlier:
            self._bias = self._build(max(2 * self._num_earlier, num_earlier))
        first = self._num_earlier - num_earlier
        rows = self._bias[: num_rows * self._group_size, first : first + num_keys]
        return rows[None, None]

    @property
    def _num_earlier(self) -> int:
        return self._bias.shape[1] - MAX_BLOCK_ROWS

    def _build(self, num_earlier: int) -> torch.Tensor:
        row = torch.arange(MAX_BLOCK_ROWS, device=self._device)[:, None]
        key = torch.arange(-num_earlier, MAX_BLOCK_ROWS, device=self._device)[None, :]
        is_seen = key <= row
        if self._sliding_window is not None:
            is_seen &= key > row - self._sliding_window
        return additive_bias(is_seen, self._dtype).repeat_interleave(self._group_size, dim=0)


def additive_bias(is_seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where `is_seen`, -inf elsewhere."""
    bias = torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device)
    return bias.masked_fill_(~is_seen, float("-inf"))
