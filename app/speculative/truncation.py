"""Top-k, top-p and min-p: each cuts a distribution to its likelier part and renormalises."""

from __future__ import annotations

import torch

# Most rows reach their top-p mass within few tokens, so that sorting a vocabulary is rarely needed.
_SORT_WIDTHS = (256, 4096)


def keep_top_k(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """The `top_ks [r]` likeliest tokens of each row of `probs [r, V]`, exactly that many."""
    counts = top_ks.clamp(max=probs.shape[1])
    values = probs.topk(int(counts.max()), dim=-1).values
    return _keep_likeliest(probs, counts, values)


def keep_top_p(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """The smallest set of likeliest tokens of each row of `probs [r, V]` whose mass reaches
    `top_ps [r]`, and at least one token."""
    vocab_size = probs.shape[1]
    for width in (*_SORT_WIDTHS, vocab_size):
        values = probs.topk(min(width, vocab_size), dim=-1).values
        counts, is_reached = _count_to_mass(values, top_ps)
        if width >= vocab_size or bool(is_reached.all()):
            break
    return _keep_likeliest(probs, counts, values)


def keep_min_p(probs: torch.Tensor, min_ps: torch.Tensor) -> torch.Tensor:
    """The tokens at least `min_ps [r]` times as likely as the likeliest of their row `[r, V]`."""
    floor = probs.amax(dim=-1, keepdim=True) * min_ps[:, None]
    return _renormalise(torch.where(probs >= floor, probs, 0.0))


def _count_to_mass(values: torch.Tensor, top_ps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many of the descending `values [r, k]` reach the mass, and whether they do."""
    cumulative = values.cumsum(dim=-1, dtype=torch.float64)
    goal = top_ps[:, None].double()
    num_below = (cumulative < goal).sum(dim=-1)
    return (num_below + 1).clamp_(max=values.shape[1]), cumulative[:, -1] >= goal[:, 0]


def _keep_likeliest(
    probs: torch.Tensor, counts: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Keep `counts [r]` tokens of each row given its largest `values [r, k]` in descending order.

    Of equal values at the border the lowest ids stay. This asks for values alone, because a partial
    sort may order equal tokens by what else is in the batch.
    """
    border = values.gather(1, counts[:, None] - 1)
    is_above = probs > border
    is_border = probs == border
    num_border = counts[:, None] - is_above.sum(dim=-1, keepdim=True)
    is_kept = is_above | (is_border & (is_border.cumsum(dim=-1) <= num_border))
    return _renormalise(torch.where(is_kept, probs, 0.0))


def _renormalise(probs: torch.Tensor) -> torch.Tensor:
    # A running sum: `sum` splits a lone row among threads, and rounds unlike in a batch.
    total = probs.cumsum(dim=-1, dtype=torch.float64)[:, -1:]
    return probs / total.float()
