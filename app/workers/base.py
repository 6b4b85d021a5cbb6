"""The interface between the scheduler and whatever speculates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from app.config.server_args import ServerArgs
from app.memory.pools import MemoryPools
from app.workers.batch import Batch, DecodeState, PrefillPiece, StepOutput
from app.workers.proposal import Proposal
from app.workers.target_forward import TargetForward
from app.workers.tp_worker import BaseTpWorker


class BaseSpecWorker(ABC):
    """One algorithm's driver. A subclass proposes; this class verifies, so that no algorithm can
    change what the target emits.

    `server_args` is the draft copy; `draft_worker` is called by algorithms that have a draft model
    and by nobody else, since the call is what loads it.
    """

    def __init__(
        self,
        *,
        server_args: ServerArgs,
        target_worker: BaseTpWorker,
        draft_worker: Callable[[], BaseTpWorker],
    ) -> None:
        self.server_args = server_args
        self.target = TargetForward(target_worker, server_args)
        # Read once: the widest verify window is fixed for the life of the worker.
        self.num_draft_tokens = server_args.speculative_num_draft_tokens or 1

    @property
    def num_window_slots(self) -> int:
        """Slots beyond the committed tokens that one decode step may write."""
        return self.num_draft_tokens

    @property
    def draft_bytes_per_token(self) -> int:
        """Bytes that one slot costs in the draft's own KV pool."""
        return 0

    def alloc_memory_pool(self, pools: MemoryPools) -> None:
        """Take the shared table and allocator; a draft with a KV cache makes its own tensors."""
        self.target.bind(pools)

    def init_attention_backends(self) -> None:
        """Called after every pool exists."""
        self.target.worker.init_attention_backend()

    @torch.inference_mode()
    def step(self, batch: Batch) -> list[StepOutput]:
        """Run one batch and say what each request emits; the caller commits it."""
        if batch.prefill:
            outputs = self.target.prefill(batch.prefill)
            self.after_prefill(batch.prefill)
            return outputs
        drafting = [state for state in batch.decode if self.can_draft(state)]
        outputs = self._speculate(drafting) if drafting else []
        done = {output.state.request_id for output in outputs}
        plain = [state for state in batch.decode if state.request_id not in done]
        if plain:
            outputs.extend(self.target.decode(plain))
        return outputs

    def _speculate(self, states: list[DecodeState]) -> list[StepOutput]:
        proposal = self.propose(states)
        if proposal is None:
            return []
        try:
            proposal.check(
                states,
                max_nodes=self.num_window_slots,
                vocab_size=self.target.worker.model_config.vocab_size,
            )
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None
        outputs = self.target.verify(proposal)
        self.after_verify(outputs)
        return outputs

    def can_draft(self, state: DecodeState) -> bool:
        """Whether a draft can pay for this request now: the last token needs none."""
        return state.num_remaining > 1

    @abstractmethod
    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        """Token trees, each with the bonus token as its root, for those of `states` that there is
        something to propose for; None when there is nothing for any. The others decode plainly."""
        ...

    def after_prefill(self, pieces: Sequence[PrefillPiece]) -> None:
        """Bring the draft up to date with prompt tokens, in the step that the target saw them."""
        return

    def after_verify(self, outputs: Sequence[StepOutput]) -> None:
        """Learn what was accepted. `state.token_ids` and `committed_len` are still the old ones."""
        return

    def release(self, state: DecodeState) -> None:
        """The request has lost its slots; it may come back."""
        state.draft_len = 0

    def forget(self, state: DecodeState) -> None:
        """The request has ended."""
        return

    def close(self) -> None:
        """Drop what the worker holds."""
        return
