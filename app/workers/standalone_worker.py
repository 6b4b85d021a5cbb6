"""STANDALONE: the draft is an ordinary small causal language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from app.config.server_args import ServerArgs
from app.memory.pools import MemoryPools
from app.speculative.beam_search import BeamSearch
from app.speculative.sampling import draft_sample, target_probs
from app.speculative.tree import build_chain, build_tree
from app.workers.base import BaseSpecWorker
from app.workers.batch import DecodeState, PrefillPiece, StepOutput
from app.workers.draft_vocabulary import compare_vocabularies
from app.workers.draft_worker_common import DraftForward
from app.workers.proposal import Proposal
from app.workers.target_forward import sampling_batch
from app.workers.tp_worker import BaseTpWorker


class StandaloneWorker(BaseSpecWorker):
    """Chains (`speculative_eagle_topk` 1) and trees, unshifted (algorithms.md section 10).

    Draft forward 0 consumes every token that the draft's cache lacks, the bonus token last, so one
    rule covers what acceptance left behind: the last drafted token of a fully accepted chain, the
    accepted path of a tree, and whatever was decoded without the draft.
    """

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
        self.draft = DraftForward(draft_worker())
        self._vocabulary = compare_vocabularies(
            target_worker.model_config, self.draft.worker.model_config
        )
        num_steps = server_args.speculative_num_steps
        topk = server_args.speculative_eagle_topk
        assert num_steps is not None, "resolution sets the steps"
        assert topk is not None, "resolution sets topk"
        num_proposable = self._vocabulary.num_ids - len(self._vocabulary.excluded)
        if topk > num_proposable:
            raise ValueError(
                f"speculative_eagle_topk = {topk}: the draft has only {num_proposable} tokens that "
                "it may propose"
            )
        self._num_steps = num_steps
        self._topk = topk
        self._samples_drafts = (
            server_args.speculative_use_rejection_sampling
            or server_args.speculative_use_block_verification
        )

    @property
    def num_window_slots(self) -> int:
        return max(self.num_draft_tokens, 1 + (self._num_steps - 1) * self._topk)

    @property
    def draft_bytes_per_token(self) -> int:
        return self.draft.bytes_per_token

    def alloc_memory_pool(self, pools: MemoryPools) -> None:
        super().alloc_memory_pool(pools)
        self.draft.bind(pools)

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        self.draft.worker.init_attention_backend()

    def can_draft(self, state: DecodeState) -> bool:
        limit = self.draft.position_limit
        fits = limit is None or state.committed_len + self._num_steps <= limit
        return fits and super().can_draft(state)

    def after_prefill(self, pieces: Sequence[PrefillPiece]) -> None:
        limit = self.draft.position_limit
        fitting = [piece for piece in pieces if limit is None or piece.end <= limit]
        if fitting:
            self.draft.extend([piece.state for piece in fitting], [piece.end for piece in fitting])

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        hidden = self.draft.extend(states, [state.committed_len + 1 for state in states])
        bonus = torch.tensor([state.token_ids[-1] for state in states], device=hidden.device)
        if self._topk == 1:
            return self._propose_chain(states, bonus, hidden)
        return self._propose_tree(states, bonus, hidden)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Draft logits over the target's ids; ids that may not be proposed are -inf."""
        return self._vocabulary.restrict(self.draft.worker.compute_logits(hidden))

    def _propose_chain(
        self, states: Sequence[DecodeState], bonus: torch.Tensor, hidden: torch.Tensor
    ) -> Proposal:
        sampling = sampling_batch(states, hidden.device)
        samples = self._samples_drafts and not sampling.is_all_greedy
        seq_lens = torch.tensor([state.committed_len for state in states], device=hidden.device)
        tokens: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []
        for step in range(self._num_steps):
            if step > 0:
                hidden = self.draft.chain_step(states, tokens[-1].tolist(), step)
            logits = self._logits(hidden)
            if samples:
                # The request's own transform, so that the draft proposes what the target may emit.
                probs.append(target_probs(logits[:, None], sampling)[:, 0])
                tokens.append(draft_sample(probs[-1], sampling.seeds, seq_lens, step))
            else:
                tokens.append(logits.argmax(dim=-1))
        return Proposal(
            states=states,
            tree=build_chain(bonus, torch.stack(tokens, dim=1)),
            num_proposed=[self._num_steps] * len(states),
            draft_probs=torch.stack(probs, dim=1) if samples else None,
        )

    def _propose_tree(
        self, states: Sequence[DecodeState], bonus: torch.Tensor, hidden: torch.Tensor
    ) -> Proposal:
        beams = BeamSearch(self._topk)
        probs, token_ids = self._logits(hidden).softmax(dim=-1).topk(self._topk, dim=-1)
        beam_tokens = beams.first(probs, token_ids)
        for step in range(1, self._num_steps):
            hidden = self.draft.beam_step(states, beam_tokens, step, beams.mask())
            probs, token_ids = self._logits(hidden).softmax(dim=-1).topk(self._topk, dim=-1)
            shape = (len(states), self._topk, self._topk)
            beam_tokens, _ = beams.advance(probs.view(shape), token_ids.view(shape))
        chosen = beams.finish(self.num_draft_tokens)
        tree = build_tree(
            bonus, chosen.parent_list, chosen.selected_index, chosen.draft_tokens, self._topk
        )
        return Proposal(
            states=states, tree=tree, num_proposed=[self.num_draft_tokens - 1] * len(states)
        )

    def after_verify(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            state = output.state
            # Exact rows: the bonus token and, in a chain, the drafted tokens that were accepted
            # and had a forward of their own (all but the last).
            num_exact = min(len(output.token_ids), self._num_steps) if self._topk == 1 else 1
            state.draft_len = state.committed_len + num_exact

    def close(self) -> None:
        del self.draft
