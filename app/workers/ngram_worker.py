"""NGRAM: continuations of n-grams that the engine has seen; no draft model, no draft KV."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from app.config.server_args import ServerArgs
from app.speculative.ngram_trie import NgramTrie
from app.speculative.tree import tree_from_parents
from app.workers.base import BaseSpecWorker
from app.workers.batch import DecodeState, PrefillPiece
from app.workers.proposal import Proposal
from app.workers.tp_worker import BaseTpWorker


class NGRAMWorker(BaseSpecWorker):
    """A trie over prompts and outputs of all requests proposes trees (algorithms.md section 15)."""

    def __init__(
        self,
        *,
        server_args: ServerArgs,
        target_worker: BaseTpWorker,
        draft_worker: Callable[[], BaseTpWorker],
    ) -> None:
        super().__init__(
            server_args=server_args, target_worker=target_worker, draft_worker=draft_worker
        )
        self.trie = NgramTrie(
            max_depth=server_args.speculative_ngram_max_trie_depth,
            capacity=server_args.speculative_ngram_capacity,
            min_breadth=server_args.speculative_ngram_min_bfs_breadth,
            max_breadth=server_args.speculative_ngram_max_bfs_breadth,
            match_type=server_args.speculative_ngram_match_type,
        )

    def after_prefill(self, pieces: Sequence[PrefillPiece]) -> None:
        for piece in pieces:
            if piece.end == len(piece.state.token_ids):
                self.trie.insert(piece.state.request_id, piece.state.token_ids)

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        trees = [
            (state, *self.trie.propose(state.request_id, state.token_ids, self.num_draft_tokens))
            for state in states
        ]
        trees = [tree for tree in trees if len(tree[1]) > 1]
        if not trees:
            return None
        width = max(len(tokens) for _, tokens, _ in trees)
        padded_tokens = [tokens + [0] * (width - len(tokens)) for _, tokens, _ in trees]
        padded_parents = [parents + [-1] * (width - len(parents)) for _, _, parents in trees]
        return Proposal(
            states=[state for state, _, _ in trees],
            tree=tree_from_parents(
                torch.tensor(padded_tokens, device=self.target.worker.device),
                torch.tensor(padded_parents, device=self.target.worker.device),
            ),
            num_proposed=[len(tokens) - 1 for _, tokens, _ in trees],
        )

    def forget(self, state: DecodeState) -> None:
        if state.has_output:
            # The last step's tokens: no proposal came behind them, but texts repeat to their end.
            self.trie.insert(state.request_id, state.token_ids)
        self.trie.erase(state.request_id)
