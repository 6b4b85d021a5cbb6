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

    def check(self, offered: Sequence[DecodeState], *, max_nodes: int, vocab_size: int) -> None:
        """Refuse what would corrupt the target's cache or output; an algorithm may be a plugin's.

        `offered` are the requests that the algorithm was asked about, `max_nodes` the slots that
        were reserved behind each one's committed tokens. Raises ValueError.
        """
        tree, states = self.tree, self.states
        if tree.tokens.shape[0] != len(states) or len(self.num_proposed) != len(states):
            raise ValueError(
                f"it proposed {tree.tokens.shape[0]} trees and {len(self.num_proposed)} counts for "
                f"{len(states)} requests"
            )
        if len({id(state) for state in states}) < len(states) or not {
            id(state) for state in states
        } <= {id(state) for state in offered}:
            raise ValueError("it proposed for a request twice, or for one it was not asked about")
        if tree.num_nodes > max_nodes:
            raise ValueError(
                f"it proposed {tree.num_nodes} nodes with the root, but "
                f"speculative_num_draft_tokens reserves {max_nodes}; let its resolve set that field"
            )
        if tree.tokens[:, 0].tolist() != [state.token_ids[-1] for state in states]:
            raise ValueError("the root of a tree must be the last token of its request")
        if not 0 <= int(tree.tokens.min()) <= int(tree.tokens.max()) < vocab_size:
            raise ValueError(f"it proposed a token id outside 0 to {vocab_size - 1}")
        expected = (len(states), tree.num_nodes - 1, vocab_size)
        if self.draft_probs is not None and (
            not tree.is_chain or self.draft_probs.shape != expected
        ):
            raise ValueError(
                f"draft_probs must be {list(expected)} and belong to chains, got "
                f"{list(self.draft_probs.shape)}"
            )
