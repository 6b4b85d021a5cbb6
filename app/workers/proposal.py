"""What a draft hands to verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from app.speculative.tree import DraftTree
from app.workers.batch import DecodeState


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree for each of `states`, padded to one width.

    `num_proposed[i]` counts the real nodes of request i without the root. `draft_probs
    [b, S, V]` is the distribution that each token of a *chain* was sampled from; None when the
    tokens were not sampled.
    """

    states: Sequence[DecodeState]
    tree: DraftTree
    num_proposed: Sequence[int]
    draft_probs: torch.Tensor | None = None
