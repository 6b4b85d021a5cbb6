"""Which acceptance rule a verify uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from app.config.server_args import ServerArgs
from app.speculative.random_draws import DrawDomain, hash_uniform
from app.speculative.sampling import SamplingBatch, sample_tokens, target_probs
from app.speculative.tree import DraftTree
from app.speculative.verify import (
    VerifyResult,
    block_accept,
    chain_rejection_accept,
    greedy_accept,
    tree_sampling_accept,
)
from app.workers.proposal import Proposal


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """What a configuration says about acceptance, read once and not in the decode loop."""

    use_block_verification: bool
    threshold_single: float
    threshold_acc: float

    @classmethod
    def from_server_args(cls, server_args: ServerArgs) -> Self:
        return cls(
            use_block_verification=server_args.speculative_use_block_verification,
            threshold_single=server_args.speculative_accept_threshold_single,
            threshold_acc=server_args.speculative_accept_threshold_acc,
        )

    @property
    def is_lossy(self) -> bool:
        return self.threshold_single < 1.0 or self.threshold_acc < 1.0


def accept(
    logits: torch.Tensor,
    proposal: Proposal,
    sampling: SamplingBatch,
    seq_lens: torch.Tensor,
    options: AcceptOptions,
) -> VerifyResult:
    """Accept nodes of `proposal.tree [b, N]` given the target's `logits [b, N, V]`.

    The default rule samples the target's token at every node and follows the children that carry
    it. A child is accepted with its target probability, as under the target-only tree rule
    (algorithms.md 6.5 a), and what is emitted is always the target's own sample: its draw is keyed
    by seed and position alone, so a seeded request gives the same text with any draft, any corpus
    and no draft at all. The other rules are opt-in: lossy thresholds need the tree rule, and drafts
    that give a distribution can accept more by rejection (6.5 b) or jointly by blocks (6.5 c).
    """
    tree = proposal.tree
    if proposal.draft_probs is not None and not sampling.is_all_greedy:
        probs = target_probs(logits, sampling)
        num_steps = tree.num_nodes - 1
        columns = torch.arange(num_steps + 1, device=logits.device)
        coins = hash_uniform(sampling.seeds, seq_lens, columns, DrawDomain.ACCEPT)
        rule = block_accept if options.use_block_verification else chain_rejection_accept
        return rule(
            tree.tokens[:, 1:],
            proposal.draft_probs,
            probs,
            coins[:, :num_steps],
            coins[:, num_steps],
        )
    if options.is_lossy and not sampling.is_all_greedy:
        columns = torch.arange(tree.num_nodes + 1, device=logits.device)
        coins = hash_uniform(sampling.seeds, seq_lens, columns, DrawDomain.ACCEPT)
        return tree_sampling_accept(
            tree,
            target_probs(logits, sampling),
            coins[:, : tree.num_nodes],
            coins[:, tree.num_nodes],
            options.threshold_single,
            options.threshold_acc,
        )
    return greedy_accept(tree, _target_tokens(tree, logits, sampling, seq_lens))


def _target_tokens(
    tree: DraftTree, logits: torch.Tensor, sampling: SamplingBatch, seq_lens: torch.Tensor
) -> torch.Tensor:
    """The target's own token behind every node that can be on the path, `[b, N]`.

    Sampling sorts and sums over the vocabulary, so it is done for the nodes of the path alone.
    """
    target_tokens = logits.argmax(dim=-1)
    if sampling.is_all_greedy:
        return target_tokens
    rows = (~sampling.is_greedy).nonzero()[:, 0]
    nodes = torch.zeros_like(rows)
    while rows.numel():
        # The token that a node predicts stands one position behind the node.
        positions = seq_lens[rows] + tree.depth[rows, nodes] + 1
        tokens = sample_tokens(
            logits[rows, nodes][:, None], sampling.select(rows), positions[:, None]
        )
        target_tokens[rows, nodes] = tokens[:, 0]
        carries_token = (tree.parents[rows] == nodes[:, None]) & (tree.tokens[rows] == tokens)
        rows = rows[carries_token.any(dim=1)]
        nodes = carries_token.to(torch.int64).argmax(dim=1)[carries_token.any(dim=1)]
    return target_tokens
