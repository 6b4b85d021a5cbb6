"""Puts this engine's attention behind transformers' attention interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface

from app.attention.forward_batch import ForwardBatch
from app.layers.attention import PagedAttention

ATTENTION_NAME = "draftscope"

# (attention module; query, key, value `[1, heads, T, dim]`; mask; other arguments)
# -> `[1, T, heads, value dim]`.
Attend = Callable[
    [nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, object, Mapping[str, Any]], torch.Tensor
]


def register_attention() -> None:
    """Make the interface known to transformers; registering again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, _attention_forward)


def _attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object = None,
    *,
    draftscope_attend: Attend,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Stateless: what to do comes down as a keyword argument of the model's own forward, so that
    engines and drafts in one process do not see each other."""
    return draftscope_attend(module, query, key, value, attention_mask, kwargs), None


class TransformersAttention(nn.Module):
    """One layer's cache geometry for a modelling code that splits heads itself.

    Keys and values of different width (multi-head latent attention) are padded with zeros to
    `head_dim`: that changes no score, and the padded part of the output is cut off.
    """

    def __init__(
        self,
        *,
        layer_id: int,
        num_heads: int,
        num_kv_heads: int,
        key_dim: int,
        value_dim: int,
        scaling: float,
        sliding_window: int | None,
        logit_softcap: float | None,
    ) -> None:
        super().__init__()
        self.value_dim = value_dim
        self.paged = PagedAttention(
            layer_id=layer_id,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=max(key_dim, value_dim),
            scaling=scaling,
            sliding_window=sliding_window,
            logit_softcap=logit_softcap,
        )

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        """`[1, heads, T, dim]` each -> `[1, T, num_heads, value_dim]`."""
        output: torch.Tensor = self.paged(
            self._rows(query), self._rows(key), self._rows(value), batch
        )
        heads = output.view(1, -1, self.paged.num_heads, self.paged.head_dim)
        return heads[..., : self.value_dim]

    def _rows(self, heads_first: torch.Tensor) -> torch.Tensor:
        rows = heads_first[0].transpose(0, 1)
        missing = self.paged.head_dim - rows.shape[-1]
        return F.pad(rows, (0, missing)) if missing else rows.contiguous()
