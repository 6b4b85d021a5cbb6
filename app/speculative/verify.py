"""Acceptance rules: how much of a draft the target takes, and what it emits instead.

Whatever the draft, emitted tokens have the target's distribution (thresholds below 1 excepted).
No rule changes its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from app.speculative.sampling import sample_from_probs
from app.speculative.tree import DraftTree

NONE = -1
_MIN_THRESHOLD = 1e-9


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`accept_index [b, D+1]`: node ids along the accepted path, the root 0 first, -1 padded.
    `num_correct [b]`: accepted nodes without the root. `predict [b, N]`: the token emitted behind
    each node of that path, the last one the new bonus token; -1 elsewhere."""

    predict: torch.Tensor
    accept_index: torch.Tensor
    num_correct: torch.Tensor


def greedy_accept(tree: DraftTree, target_tokens: torch.Tensor) -> VerifyResult:
    """Follow the children that carry the target's token (algorithms.md section 6.4).

    `target_tokens [b, N]` is what the target has chosen behind every node, by argmax or by a draw
    of its own that knows nothing of the draft.
    """
    parents = tree.parents.clamp(min=0)
    is_chosen = (tree.tokens == target_tokens.gather(1, parents)) & (tree.parents >= 0)
    accept_index, num_correct, is_accepted = _follow(tree, is_chosen)
    return VerifyResult(
        predict=torch.where(is_accepted, target_tokens, NONE),
        accept_index=accept_index,
        num_correct=num_correct,
    )


def tree_sampling_accept(
    tree: DraftTree,
    probs: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> VerifyResult:
    """The target-only rule for trees (algorithms.md section 6.5 a).

    `probs [b, N, V]` are the target's distributions behind every node, `coins [b, N]` and
    `final_coins [b]` independent uniforms. One coin a node picks among its children by inverse CDF,
    each child's share its probability; what no child covers is sampled from the remaining mass. So
    the walk is exact for any draft; thresholds below 1 accept more than that.
    """
    parents = tree.parents.clamp(min=0)
    is_child = tree.parents >= 0
    rows = torch.arange(tree.tokens.shape[0], device=probs.device)[:, None]
    child_probs = torch.where(is_child, probs[rows, parents, tree.tokens], 0.0)
    is_sibling_before = _siblings_before(tree)
    # A repeated token has no mass left for its second node.
    same_token = tree.tokens[:, :, None] == tree.tokens[:, None, :]
    child_probs = child_probs.masked_fill((is_sibling_before & same_token).any(dim=-1), 0.0)
    mass_before = (is_sibling_before * child_probs[:, None, :]).sum(dim=-1)
    accumulated = mass_before + child_probs
    is_chosen = (child_probs > 0) & (
        (coins.gather(1, parents) < accumulated / max(threshold_acc, _MIN_THRESHOLD))
        | (child_probs >= threshold_single)
    )
    accept_index, num_correct, is_accepted = _follow(tree, is_chosen)
    last = accept_index.gather(1, num_correct[:, None])
    # None of the last node's children was taken: their tokens are out.
    last_row = probs[rows, last][:, 0]
    remaining = _without(last_row, tree.tokens, is_child & (tree.parents == last))
    bonus = _sample_or(remaining, last_row, final_coins)
    # Every other node of the path emits its accepted child's token; the sink takes the rest.
    sink = tree.num_nodes
    emitter = torch.where(is_child & is_accepted, tree.parents, sink)
    predict = torch.full_like(tree.tokens, NONE)
    predict = torch.cat([predict, predict[:, :1]], dim=1).scatter_(1, emitter, tree.tokens)
    predict.scatter_(1, last, bonus[:, None])
    return VerifyResult(predict[:, :sink], accept_index, num_correct)


def chain_rejection_accept(
    draft_tokens: torch.Tensor,
    q: torch.Tensor,
    p: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
) -> VerifyResult:
    """Rejection sampling of a chain, token by token (algorithms.md section 6.5 b).

    `draft_tokens [b, S]` were drawn from `q [b, S, V]`; `p [b, S+1, V]` are the target's
    distributions at the same places and one behind; `coins [b, S]` and `final_coins [b]` uniforms
    independent of the draws. Token i is accepted with probability min(1, p/q); the first rejected
    one is replaced by a sample of max(p - q, 0).
    """
    num_steps = draft_tokens.shape[1]
    drawn_p, drawn_q = _drawn(draft_tokens, q, p)
    is_accepted = (drawn_q > 0) & (coins * drawn_q < drawn_p)
    num_correct = is_accepted.long().cumprod(dim=1).sum(dim=1)
    scale = torch.ones_like(final_coins)
    bonus = _sample_residual(q, p, num_correct, scale, final_coins, num_steps)
    return _chain_result(draft_tokens, num_correct, bonus)


def block_accept(
    draft_tokens: torch.Tensor,
    q: torch.Tensor,
    p: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
) -> VerifyResult:
    """Block verification: the longest prefix that its joint ratio allows (algorithms.md 6.5 c).

    Arguments as for `chain_rejection_accept`, and so is the law of what is emitted, but on average
    no fewer tokens are accepted: a token the draft overrates can be made up for by the next ones.
    Source: Sun et al. 2024 (arXiv 2403.10444), algorithm 2.
    """
    num_steps = draft_tokens.shape[1]
    drawn_p, drawn_q = _drawn(draft_tokens, q, p)
    ratio = torch.where(drawn_q > 0, drawn_p.double() / drawn_q.double(), 0.0)
    # 1. joint[:, i]: r_i, the ratio of the first i tokens, cut to 1 at every step.
    joint = [torch.ones_like(ratio[:, 0])]
    for step in range(num_steps):
        joint.append((joint[-1] * ratio[:, step]).clamp(max=1.0))
    joint_ratio = torch.stack(joint, dim=1)
    # 2. h_i: with which probability exactly the first i tokens or more are taken.
    inner = joint_ratio[:, 1:num_steps]
    excess = inner[:, :, None] * p[:, 1:num_steps] - _valid(q[:, 1:])
    mass = excess.clamp_(min=0.0).sum(dim=-1)
    is_certain = (inner == 0) | (inner == 1)
    # A certain ratio could give 0 / 0.
    hold = torch.where(is_certain, inner, mass / (mass + 1.0 - inner).clamp(min=1e-300))
    hold = torch.cat([hold, joint_ratio[:, num_steps:]], dim=1)
    # 3. The largest i whose coin holds.
    lengths = torch.arange(1, num_steps + 1, device=p.device)
    num_correct = torch.where(coins < hold, lengths, 0).amax(dim=1)
    scale = joint_ratio.gather(1, num_correct[:, None])[:, 0]
    bonus = _sample_residual(q, p, num_correct, scale, final_coins, num_steps)
    return _chain_result(draft_tokens, num_correct, bonus)


def compaction_moves(accept_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the accepted path's keys and values lie in one request's window, and where they belong.

    From `accept_index [D+1]`: window indices (source, destination), without those in place. Node n
    was written at window index n; the j-th node of the path belongs at j. Ranges may overlap: read
    all before writing any.
    """
    destination = torch.arange(accept_index.shape[0], device=accept_index.device)
    moves = (accept_index >= 0) & (accept_index != destination)
    return accept_index[moves], destination[moves]


def _follow(
    tree: DraftTree, is_chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The path from the root along each node's first chosen child, from `is_chosen [b, N]`.

    Returns accept_index, num_correct and which nodes lie on the path.
    """
    is_taken = is_chosen & ~(_siblings_before(tree) & is_chosen[:, None, :]).any(dim=-1)
    is_taken[:, 0] = True
    is_accepted = ~(tree.mask & ~is_taken[:, None, :]).any(dim=-1)
    # A fill node has no ancestor that could stop it.
    is_accepted &= is_taken
    num_nodes = tree.num_nodes
    nodes = torch.arange(num_nodes, device=is_chosen.device)
    # Parents come before children, so a path in ascending order is a path from the root.
    path = torch.where(is_accepted, nodes, num_nodes).sort(dim=1).values[:, : tree.max_depth + 1]
    accept_index = torch.where(path < num_nodes, path, NONE)
    return accept_index, is_accepted.sum(dim=1) - 1, is_accepted


def _siblings_before(tree: DraftTree) -> torch.Tensor:
    """`[b, N, N]` bool: column m is a sibling of row n and visited before it."""
    nodes = torch.arange(tree.num_nodes, device=tree.parents.device)
    same_parent = tree.parents[:, :, None] == tree.parents[:, None, :]
    return same_parent & (nodes < nodes[:, None]) & (tree.parents >= 0)[:, :, None]


def _without(row: torch.Tensor, tokens: torch.Tensor, is_out: torch.Tensor) -> torch.Tensor:
    """`row [b, V]` with no mass on those of `tokens [b, N]` that are out; a copy."""
    vocab_size = row.shape[1]
    padded = torch.cat([row, torch.zeros_like(row[:, :1])], dim=1)
    padded.scatter_(1, torch.where(is_out, tokens, vocab_size), 0.0)
    return padded[:, :vocab_size]


def _valid(q: torch.Tensor) -> torch.Tensor:
    """Draft probabilities with whatever is none (NaN, negative, above 1) as 0."""
    return torch.where((q >= 0) & (q <= 1), q, 0.0)


def _drawn(
    draft_tokens: torch.Tensor, q: torch.Tensor, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q of the drawn tokens, `[b, S]` each."""
    index = draft_tokens[:, :, None]
    drawn_p = p[:, : draft_tokens.shape[1]].gather(2, index)[:, :, 0]
    return drawn_p, _valid(q.gather(2, index)[:, :, 0])


def _sample_residual(
    q: torch.Tensor,
    p: torch.Tensor,
    num_correct: torch.Tensor,
    scale: torch.Tensor,
    coins: torch.Tensor,
    num_steps: int,
) -> torch.Tensor:
    """The token behind the accepted prefix: from max(scale * p - q, 0), or from p behind the whole
    chain and where rounding leaves no residual."""
    rows = torch.arange(p.shape[0], device=p.device)
    target_row = p[rows, num_correct]
    draft_row = _valid(q[rows, num_correct.clamp(max=num_steps - 1)])
    residual = (scale[:, None] * target_row - draft_row).clamp_(min=0.0)
    residual = torch.where((num_correct == num_steps)[:, None], target_row, residual)
    return _sample_or(residual, target_row, coins)


def _sample_or(probs: torch.Tensor, otherwise: torch.Tensor, coins: torch.Tensor) -> torch.Tensor:
    """A sample of `probs [b, V]`, or of `otherwise` for rows without mass."""
    has_mass = (probs > 0).any(dim=-1, keepdim=True)
    return sample_from_probs(torch.where(has_mass, probs, otherwise), coins)


def _chain_result(
    draft_tokens: torch.Tensor, num_correct: torch.Tensor, bonus: torch.Tensor
) -> VerifyResult:
    num_accepted = num_correct[:, None]
    nodes = torch.arange(draft_tokens.shape[1] + 1, device=draft_tokens.device)
    tokens = torch.cat([draft_tokens, bonus[:, None]], dim=1)
    predict = torch.where(nodes < num_accepted, tokens, NONE)
    return VerifyResult(
        predict=predict.scatter_(1, num_accepted, bonus[:, None]),
        accept_index=torch.where(nodes <= num_accepted, nodes, NONE),
        num_correct=num_correct,
    )
