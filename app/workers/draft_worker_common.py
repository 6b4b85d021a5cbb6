"""What drafts with a model of their own share: their KV tensors and their forwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from app.attention.forward_batch import ForwardMode
from app.memory.pools import MemoryPools
from app.memory.token_to_kv_pool import kv_bytes_per_token
from app.workers.batch import DecodeState
from app.workers.forward_batch_builder import CausalRows, MaskedRows, causal_batch, masked_batch
from app.workers.tp_worker import BaseTpWorker


class DraftForward:
    """Runs a draft model that sees tokens only, in the unshifted layout (algorithms.md section 10):
    token t at position p is stored in the slot of p.

    The window behind the committed tokens holds, by column: 0 the bonus token; then, for draft
    forward i >= 1 and beam k, column `1 + (i - 1) * K + k`.
    """

    def __init__(self, worker: BaseTpWorker) -> None:
        self.worker = worker
        self._pools: MemoryPools | None = None

    @property
    def pools(self) -> MemoryPools:
        assert self._pools is not None, "alloc_memory_pool comes first"
        return self._pools

    @property
    def bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.worker.kv_geometry, self.worker.kv_cache_dtype)

    @property
    def position_limit(self) -> int | None:
        """Positions that the draft knows, where they are learned; rotary drafts have no limit."""
        config = self.worker.model_config
        return config.max_position_embeddings if config.has_learned_positions else None

    def bind(self, pools: MemoryPools) -> None:
        """Make the draft's own KV tensors over the shared slots."""
        self._pools = pools
        self.worker.alloc_kv_pool(pools.num_slots)

    def extend(self, states: Sequence[DecodeState], ends: Sequence[int]) -> torch.Tensor:
        """Run the tokens `draft_len .. end-1` of each request, which makes its cache exact up to
        `end`; returns the hidden state of each request's last token, `[b, hidden]`."""
        rows = [
            CausalRows(state.row, state.draft_len, state.token_ids[state.draft_len : end])
            for state, end in zip(states, ends, strict=True)
        ]
        from_nothing = all(row.start == 0 for row in rows)
        mode = ForwardMode.EXTEND if from_nothing else ForwardMode.DRAFT_EXTEND
        batch = causal_batch(mode, rows, self.worker, self.pools)
        # Ids that only the target has: the draft reads some token it knows, which costs acceptance
        # and nothing else.
        vocab_size = self.worker.model_config.vocab_size
        batch.input_ids.masked_fill_(batch.input_ids >= vocab_size, 0)
        hidden = self.worker.forward(batch)
        for state, end in zip(states, ends, strict=True):
            state.draft_len = end
        last_rows = [span.row_end - 1 for span in batch.spans]
        if len(last_rows) == hidden.shape[0]:
            return hidden
        return hidden[torch.tensor(last_rows, device=hidden.device)]

    def chain_step(
        self, states: Sequence[DecodeState], tokens: Sequence[int], offset: int
    ) -> torch.Tensor:
        """Run one drafted token a request, `offset` positions behind the bonus; `[b, hidden]`."""
        rows = [
            CausalRows(state.row, state.committed_len + offset, [token])
            for state, token in zip(states, tokens, strict=True)
        ]
        return self.worker.forward(causal_batch(ForwardMode.DECODE, rows, self.worker, self.pools))

    def beam_step(
        self, states: Sequence[DecodeState], tokens: torch.Tensor, step: int, mask: torch.Tensor
    ) -> torch.Tensor:
        """Run K beams a request, `tokens [b, K]`, as draft forward `step` >= 1; each beam sees its
        own ancestors by `mask [b, K, 1 + step * K]`. Returns `[b * K, hidden]`."""
        topk = tokens.shape[1]
        device = tokens.device
        first_column = 1 + (step - 1) * topk
        columns = torch.arange(first_column, first_column + topk, device=device)
        depths = torch.full((topk,), step, dtype=torch.int64, device=device)
        # Column c > 0 was written by forward 1 + (c - 1) // K, so many positions behind the bonus.
        window_depths = (torch.arange(1 + step * topk, device=device) + topk - 1) // topk
        batch = masked_batch(
            ForwardMode.DECODE,
            [
                MaskedRows(
                    row=state.row,
                    prefix_len=state.committed_len,
                    token_ids=tokens[i],
                    depths=depths,
                    window_columns=columns,
                    mask=mask[i],
                    window_depths=window_depths,
                )
                for i, state in enumerate(states)
            ],
            self.worker,
            self.pools,
        )
        return self.worker.forward(batch)
