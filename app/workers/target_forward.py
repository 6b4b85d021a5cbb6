"""The target's three forwards: prefill, one plain decode step, and the verify of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from app.attention.forward_batch import ForwardBatch, ForwardMode
from app.config.server_args import ServerArgs
from app.memory.pools import MemoryPools
from app.speculative.sampling import SamplingBatch, sample_tokens
from app.speculative.tree import DraftTree
from app.speculative.verify import compaction_moves
from app.workers.accept import AcceptOptions, accept
from app.workers.batch import DecodeState, PrefillPiece, StepOutput
from app.workers.forward_batch_builder import CausalRows, MaskedRows, causal_batch, masked_batch
from app.workers.proposal import Proposal
from app.workers.tp_worker import BaseTpWorker


class TargetForward:
    """Runs the target and samples from it. Whatever is emitted is decided here and in `accept`."""

    def __init__(self, worker: BaseTpWorker, server_args: ServerArgs) -> None:
        self.worker = worker
        self._accept_options = AcceptOptions.from_server_args(server_args)
        self._pools: MemoryPools | None = None

    @property
    def pools(self) -> MemoryPools:
        assert self._pools is not None, "alloc_memory_pool comes first"
        return self._pools

    def bind(self, pools: MemoryPools) -> None:
        """Make the target's KV tensors over the shared slots."""
        self._pools = pools
        self.worker.alloc_kv_pool(pools.num_slots)

    def prefill(self, pieces: Sequence[PrefillPiece]) -> list[StepOutput]:
        """Run prompt pieces; sample the first token of each prompt that is now complete."""
        rows = [
            CausalRows(piece.state.row, piece.start, piece.state.token_ids[piece.start : piece.end])
            for piece in pieces
        ]
        batch = causal_batch(ForwardMode.EXTEND, rows, self.worker, self.pools)
        hidden = self.worker.forward(batch)
        sampling = [i for i, piece in enumerate(pieces) if piece.samples]
        tokens = iter(self._sample_last(hidden, batch, sampling, [p.state for p in pieces]))
        return [
            StepOutput(piece.state, [next(tokens)] if piece.samples else []) for piece in pieces
        ]

    def decode(self, states: Sequence[DecodeState]) -> list[StepOutput]:
        """One token a request, without a draft."""
        rows = [CausalRows(s.row, s.committed_len, s.token_ids[s.committed_len :]) for s in states]
        batch = causal_batch(ForwardMode.DECODE, rows, self.worker, self.pools)
        hidden = self.worker.forward(batch)
        tokens = self._sample_last(hidden, batch, range(len(states)), states)
        return [StepOutput(s, [token]) for s, token in zip(states, tokens, strict=True)]

    def _sample_last(
        self,
        hidden: torch.Tensor,
        batch: ForwardBatch,
        chosen: Sequence[int],
        states: Sequence[DecodeState],
    ) -> list[int]:
        """Sample behind the last row of each chosen span; the head runs over those rows only."""
        if not chosen:
            return []
        last_rows = [batch.spans[i].row_end - 1 for i in chosen]
        if len(last_rows) != hidden.shape[0]:
            hidden = hidden[torch.tensor(last_rows, device=hidden.device)]
        logits = self.worker.compute_logits(hidden)
        sampled = [states[i] for i in chosen]
        positions = torch.tensor([len(state.token_ids) for state in sampled], device=logits.device)
        tokens: list[int] = sample_tokens(
            logits[:, None], sampling_batch(sampled, logits.device), positions[:, None]
        )[:, 0].tolist()
        return tokens

    def verify(self, proposal: Proposal) -> list[StepOutput]:
        """Run all nodes of all trees in one forward, accept, and compact the accepted path's KV."""
        states = proposal.states
        tree = proposal.tree
        num_requests, num_nodes = tree.tokens.shape
        batch = self._verify_batch(states, tree)
        logits = self.worker.compute_logits(self.worker.forward(batch))
        seq_lens = torch.tensor([state.committed_len for state in states], device=logits.device)
        result = accept(
            logits.view(num_requests, num_nodes, -1),
            proposal,
            sampling_batch(states, logits.device),
            seq_lens,
            self._accept_options,
        )
        if not tree.is_chain:
            self._compact(states, result.accept_index)
        predict = result.predict.tolist()
        paths = result.accept_index.tolist()
        num_correct = result.num_correct.tolist()
        return [
            StepOutput(
                state,
                [predict[i][node] for node in paths[i][: num_correct[i] + 1]],
                num_from_draft=num_correct[i],
                num_proposed=proposal.num_proposed[i],
            )
            for i, state in enumerate(states)
        ]

    def _verify_batch(self, states: Sequence[DecodeState], tree: DraftTree) -> ForwardBatch:
        mode = ForwardMode.TARGET_VERIFY
        if tree.is_chain:
            tokens = tree.tokens.tolist()
            rows = [
                CausalRows(state.row, state.committed_len, tokens[i])
                for i, state in enumerate(states)
            ]
            return causal_batch(mode, rows, self.worker, self.pools)
        columns = torch.arange(tree.num_nodes, device=tree.tokens.device)
        return masked_batch(
            mode,
            [
                MaskedRows(
                    row=state.row,
                    prefix_len=state.committed_len,
                    token_ids=tree.tokens[i],
                    depths=tree.depth[i],
                    window_columns=columns,
                    mask=tree.mask[i],
                    window_depths=tree.depth[i],
                )
                for i, state in enumerate(states)
            ],
            self.worker,
            self.pools,
        )

    def _compact(self, states: Sequence[DecodeState], accept_index: torch.Tensor) -> None:
        """Move the accepted path's keys and values to the front of the window, in every layer."""
        sources: list[torch.Tensor] = []
        destinations: list[torch.Tensor] = []
        table = self.pools.req_to_token_pool
        for i, state in enumerate(states):
            source, destination = compaction_moves(accept_index[i])
            if source.numel():
                window = table.slots(state.row, state.committed_len, table.num_slots(state.row))
                sources.append(window[source])
                destinations.append(window[destination])
        if sources:
            self.worker.token_to_kv_pool.move(torch.cat(sources), torch.cat(destinations))


def sampling_batch(states: Sequence[DecodeState], device: torch.device) -> SamplingBatch:
    """The sampling parameters of a batch, a row a request."""
    return SamplingBatch.from_params([(state.params, state.seed) for state in states], device)
