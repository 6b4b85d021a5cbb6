"""Which tokens a draft model's tree holds: beams of `topk`, then the best of all candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class SelectedCandidates(NamedTuple):
    """What `build_tree` needs: flat ids `[b, N-1]` ascending, their tokens `[b, N-1]`, and the flat
    id of each group's parent `[b, K*(S-1)+1]`."""

    selected_index: torch.Tensor
    draft_tokens: torch.Tensor
    parent_list: torch.Tensor


def select_candidates(
    scores: Sequence[torch.Tensor],
    tokens: Sequence[torch.Tensor],
    parents: Sequence[torch.Tensor],
    num_draft_tokens: int,
) -> SelectedCandidates:
    """Keep the `num_draft_tokens - 1` best candidates of all steps (algorithms.md section 6.1).

    One tensor a step, flattened behind the batch: `scores` and `tokens` `[b, K]` and then
    `[b, K*K]`, `parents` `[b, K+1]` and then `[b, K]`; the last step's parents have no children and
    are left out. A child never scores above its parent and comes behind it, so with a stable order
    the parent of a kept candidate is kept, on ties too.
    """
    all_scores = torch.cat([score.flatten(1) for score in scores], dim=1)
    all_tokens = torch.cat([token.flatten(1) for token in tokens], dim=1)
    num_selected = num_draft_tokens - 1
    assert num_selected <= all_scores.shape[1], "more draft tokens than candidates"
    selected_index = _stable_topk(all_scores, num_selected).sort(dim=1).values
    # With one step only the root's group remains.
    kept_parents = parents[:-1] if len(parents) > 1 else [parents[0][:, :1]]
    return SelectedCandidates(
        selected_index=selected_index,
        draft_tokens=all_tokens.gather(1, selected_index),
        parent_list=torch.cat(list(kept_parents), dim=1),
    )


def _stable_topk(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k highest scores of each row, the lower index first among equals."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :k]


class BeamSearch:
    """The state of one proposal's draft loop.

    Draft forward 0 consumes the bonus token and gives `first` its K best tokens; forward i >= 1
    consumes K beams and gives `advance` K tokens for each. Beams are numbered 0..K-1 within their
    forward, the most probable first. `scores`, `tokens` and `parents` record every step as
    `select_candidates` wants them.
    """

    def __init__(self, topk: int) -> None:
        self.topk = topk
        self.scores: list[torch.Tensor] = []
        self.tokens: list[torch.Tensor] = []
        self.parents: list[torch.Tensor] = []
        self._beam_scores = torch.empty(0)
        self._mask = torch.empty(0)

    def first(self, probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Take the K best tokens behind the bonus, `[b, K]` each; returns the beams' tokens."""
        assert not self.scores, "first comes once"
        num_requests = tokens.shape[0]
        self._beam_scores = _as_probability(probs)
        self.scores.append(self._beam_scores)
        self.tokens.append(tokens)
        self.parents.append(
            torch.arange(-1, self.topk, device=tokens.device).expand(num_requests, self.topk + 1)
        )
        root = torch.ones(num_requests, self.topk, 1, dtype=torch.bool, device=tokens.device)
        self._mask = torch.cat([root, self._own_columns(num_requests)], dim=2)
        return tokens

    def advance(
        self, probs: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take K tokens behind each beam, `[b, K, K]` each, and keep the K best paths.

        Returns the new beams' tokens `[b, K]` and the beam each continues `[b, K]`: whatever state
        a draft carries a beam has to be gathered by it.
        """
        assert self.scores, "first comes before advance"
        cumulative = (self._beam_scores[:, :, None] * _as_probability(probs)).flatten(1)
        flat_tokens = tokens.flatten(1)
        chosen = _stable_topk(cumulative, self.topk)
        parent_beam = chosen // self.topk
        # Candidates of earlier steps: K of the first, K*K of each one since.
        first_id = self.topk + self.topk**2 * (len(self.scores) - 1)
        self.scores.append(cumulative)
        self.tokens.append(flat_tokens)
        self.parents.append(chosen + first_id)
        self._beam_scores = cumulative.gather(1, chosen)
        num_columns = self._mask.shape[2]
        inherited = self._mask.gather(1, parent_beam[:, :, None].expand(-1, -1, num_columns))
        self._mask = torch.cat([inherited, self._own_columns(tokens.shape[0])], dim=2)
        return flat_tokens.gather(1, chosen), parent_beam

    def mask(self) -> torch.Tensor:
        """What each beam of the coming forward i sees of the draft window: `[b, K, 1 + i*K]` bool.

        Column 0 is the bonus token, column `1 + (i-1)*K + k` beam k of forward i.
        """
        return self._mask

    def finish(self, num_draft_tokens: int) -> SelectedCandidates:
        """The best candidates of all steps so far, for a tree of `num_draft_tokens` nodes."""
        return select_candidates(self.scores, self.tokens, self.parents, num_draft_tokens)

    def _own_columns(self, num_requests: int) -> torch.Tensor:
        own = torch.eye(self.topk, dtype=torch.bool, device=self.tokens[0].device)
        return own.expand(num_requests, -1, -1)


def _as_probability(probs: torch.Tensor) -> torch.Tensor:
    """Within [0, 1] whatever the draft returns: a NaN or a value above one would let a child score
    above its parent, and a tree could lose its inner nodes."""
    return probs.nan_to_num(0.0).clamp(0.0, 1.0)
