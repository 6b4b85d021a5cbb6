"""Draft trees: which node follows which, and who sees whom (algorithms.md section 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NONE = -1


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One token tree a request, `N` nodes wide; node 0 is the root, the bonus token.

    `tokens`, `parents`, `next_token` (first child), `next_sibling` and `depth` are `[b, N]` int64
    with node ids of the own row, -1 for none. A parent comes before its children. `mask [b, N, N]`
    (bool): row i sees itself and its ancestors. A node other than the root with parent -1 only
    fills the row: nothing reaches it. `is_chain`: every node has the node before it as parent.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    depth: torch.Tensor
    mask: torch.Tensor
    is_chain: bool

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    @property
    def max_depth(self) -> int:
        """Most nodes that any path has below the root."""
        return self.num_nodes - 1 if self.is_chain else int(self.depth.max())


def build_chain(bonus: torch.Tensor, draft_tokens: torch.Tensor) -> DraftTree:
    """`bonus [b]` followed by `draft_tokens [b, S]`, each the child of the one before."""
    tokens = torch.cat([bonus[:, None], draft_tokens], dim=1)
    num_requests, num_nodes = tokens.shape
    nodes = torch.arange(num_nodes, device=tokens.device)
    following = torch.where(nodes + 1 < num_nodes, nodes + 1, NONE)
    rows = (num_requests, num_nodes)
    causal = torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=tokens.device).tril_()
    return DraftTree(
        tokens=tokens,
        parents=(nodes - 1).expand(rows),
        next_token=following.expand(rows),
        next_sibling=torch.full(rows, NONE, device=tokens.device),
        depth=nodes.expand(rows),
        mask=causal.expand(num_requests, num_nodes, num_nodes),
        is_chain=True,
    )


def build_tree(
    bonus: torch.Tensor,
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    draft_tokens: torch.Tensor,
    topk: int,
) -> DraftTree:
    """The tree of the candidates that a beam search has kept.

    Takes `bonus [b]`, `parent_list [b, K*(S-1)+1]`, `selected_index [b, N-1]` (flat candidate ids,
    ascending) and their `draft_tokens [b, N-1]`. Node i is candidate `selected_index[i-1]`; group
    `q = id // K` of K candidates shares one parent: the root for q = 0, else the candidate with
    flat id `parent_list[q]`, which is selected too.
    """
    tokens = torch.cat([bonus[:, None], draft_tokens], dim=1)
    group = selected_index // topk
    parent_candidate = parent_list.gather(1, group)
    position = torch.searchsorted(selected_index.contiguous(), parent_candidate.contiguous())
    parents = torch.where(group == 0, 0, position + 1)
    root_parent = torch.full_like(bonus[:, None], NONE)
    return _with_links(tokens, torch.cat([root_parent, parents], dim=1))


def tree_from_parents(tokens: torch.Tensor, parents: torch.Tensor) -> DraftTree:
    """A tree from `tokens [b, N]` and `parents [b, N]`: the root's parent is -1, every other
    parent comes before its child, and nodes that fill a shorter row have parent -1."""
    return _with_links(tokens, parents)


def _with_links(tokens: torch.Tensor, parents: torch.Tensor) -> DraftTree:
    num_nodes = tokens.shape[1]
    nodes = torch.arange(num_nodes, device=tokens.device)
    # is_parent[r, n, m]: m is the parent of n.
    is_parent = parents[:, :, None] == nodes
    mask = _reachable(is_parent)
    has_parent = parents >= 0
    next_token = _first(is_parent.transpose(1, 2))
    later_sibling = (
        (parents[:, :, None] == parents[:, None, :])
        & (nodes > nodes[:, None])
        & has_parent[:, :, None]
    )
    return DraftTree(
        tokens=tokens,
        parents=parents,
        next_token=next_token,
        next_sibling=_first(later_sibling),
        depth=mask.sum(dim=-1) - 1,
        mask=mask,
        is_chain=bool((parents == nodes - 1).all()),
    )


def _reachable(is_parent: torch.Tensor) -> torch.Tensor:
    """Self and ancestors of every node, by doubling the length of the paths."""
    num_nodes = is_parent.shape[-1]
    identity = torch.eye(num_nodes, device=is_parent.device)
    reached = is_parent.float() + identity
    path_len = 1
    while path_len < num_nodes - 1:
        # Every node has one parent, so a path is counted once or, by standing still, more often.
        reached = (reached @ reached).clamp_(max=1.0)
        path_len *= 2
    return reached > 0


def _first(where: torch.Tensor) -> torch.Tensor:
    """The lowest true index of each row of `where [b, N, N]`, -1 where there is none."""
    num_nodes = where.shape[-1]
    nodes = torch.arange(num_nodes, device=where.device)
    lowest = torch.where(where, nodes, num_nodes).amin(dim=-1)
    return torch.where(lowest < num_nodes, lowest, NONE)
