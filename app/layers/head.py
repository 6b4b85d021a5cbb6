"""The head that turns hidden states into logits."""

from __future__ import annotations

import torch

from app.layers.embedding import TokenEmbedding
from app.layers.linear import Linear


class LMHead(Linear):
    """`[rows, hidden_size] -> [rows, vocab_size]` float32, however the weight is stored."""

    def tie(self, embedding: TokenEmbedding) -> None:
        """Use the embedding's weight; packing makes a second copy, since a lookup needs rows."""
        self.weight = embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float()
