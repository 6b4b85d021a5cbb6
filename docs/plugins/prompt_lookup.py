"""PROMPT_LOOKUP: proposes what followed the last tokens where they stood before.

An example of a plugin: one worker, one registration, nothing global.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from app import ServerArgs, SpeculativeAlgorithm
from app.speculative.tree import build_chain
from app.workers.base import BaseSpecWorker
from app.workers.batch import DecodeState
from app.workers.proposal import Proposal

LONGEST_SUFFIX = 4
DEFAULT_DRAFT_TOKENS = 8


def look_up(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """What followed the latest earlier place of the longest suffix; [] when there is none."""
    for length in range(min(LONGEST_SUFFIX, len(token_ids) - 1), 0, -1):
        suffix = list(token_ids[-length:])
        for start in range(len(token_ids) - length - 1, -1, -1):
            if list(token_ids[start : start + length]) == suffix:
                return list(token_ids[start + length : start + length + num_tokens])
    return []


class PromptLookupWorker(BaseSpecWorker):
    """Proposes one chain a request, from the request's own tokens."""

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        chains = [(s, look_up(s.token_ids, self.num_draft_tokens - 1)) for s in states]
        found = [(state, chain) for state, chain in chains if chain]
        if not found:
            return None
        # Trees of one batch have one width; a request alone gets all it found.
        width = min(len(chain) for _, chain in found)
        device = self.target.worker.device
        bonus = torch.tensor([state.token_ids[-1] for state, _ in found], device=device)
        drafted = torch.tensor([chain[:width] for _, chain in found], device=device)
        return Proposal(
            states=[state for state, _ in found],
            tree=build_chain(bonus, drafted),
            num_proposed=[width] * len(found),
        )


def resolve(server_args: ServerArgs) -> Mapping[str, object]:
    """Verify eight nodes unless the user says otherwise."""
    num_draft_tokens = server_args.speculative_num_draft_tokens or DEFAULT_DRAFT_TOKENS
    return {
        "speculative_num_draft_tokens": num_draft_tokens,
        "speculative_num_steps": num_draft_tokens - 1,
        "speculative_eagle_topk": 1,
    }


@SpeculativeAlgorithm.register(
    "PROMPT_LOOKUP",
    resolve=resolve,
    summary="what followed the last tokens earlier in the request; no draft model",
)
def registration(server_args: ServerArgs) -> type[PromptLookupWorker]:
    return PromptLookupWorker
