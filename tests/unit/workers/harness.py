"""Drives one worker as the scheduler does, with fakes for models and without queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.memory.allocator import PagedAllocator
from app.memory.pools import MemoryPools
from app.memory.req_to_token_pool import ReqToTokenPool
from app.testing.fakes import FakeTpWorker, hashed_logits
from app.workers.base import BaseSpecWorker
from app.workers.batch import Batch, DecodeState, PrefillPiece, StepOutput

VOCAB_SIZE = 32
CONTEXT_LENGTH = 96


def record(**fields: Any) -> ServerArgs:
    """A record as resolution leaves it; a chain of three steps unless `fields` say otherwise."""
    chain = {
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    return ServerArgs(model_path="fake", **(chain | fields))


def fake(seed: int = 0, **facts: Any) -> FakeTpWorker:
    """A model whose next token depends on every token that it sees."""
    facts = {"vocab_size": VOCAB_SIZE, "context_len": CONTEXT_LENGTH} | facts
    logits = facts.pop("logits", None) or hashed_logits(facts["vocab_size"], seed=seed)
    return FakeTpWorker(logits, **facts)


def greedy_text(
    prompt: Sequence[int], max_new_tokens: int, seed: int = 0, vocab_size: int = VOCAB_SIZE
) -> list[int]:
    """Prompt and output of the fake model `fake(seed)` alone, computed without any engine."""
    logits = hashed_logits(vocab_size, seed=seed)
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        tokens.append(int(logits(tokens).argmax()))
    return tokens


class Driver:
    """Requests on one worker: `admit`, `prefill`, `decode`; tokens are committed whole."""

    def __init__(
        self,
        worker: BaseSpecWorker,
        *,
        num_rows: int = 4,
        page_size: int = 1,
        observe: Callable[[list[StepOutput]], None] = lambda outputs: None,
    ) -> None:
        self.worker = worker
        self.observe = observe
        columns = -(-(CONTEXT_LENGTH + worker.num_window_slots) // page_size) * page_size
        self.pools = MemoryPools(
            ReqToTokenPool(num_rows, columns, torch.device("cpu")),
            PagedAllocator(num_rows * columns // page_size + 1, page_size),
        )
        worker.alloc_memory_pool(self.pools)
        worker.init_attention_backends()
        self._request_ids = iter(range(1000))

    def admit(self, prompt: Sequence[int], max_new_tokens: int, **params: Any) -> DecodeState:
        state = DecodeState(
            request_id=next(self._request_ids),
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            params=SamplingParams(max_new_tokens=max_new_tokens, **params),
            seed=7,
            max_len=len(prompt) + max_new_tokens,
            row=self.pools.req_to_token_pool.take_row(),
        )
        self._grow(state, len(prompt))
        return state

    def prefill(self, states: Sequence[DecodeState], chunk_size: int = 1000) -> None:
        """Prefill prompts together, in chunks."""
        while pending := [s for s in states if s.committed_len < s.num_prompt_tokens]:
            pieces = [
                PrefillPiece(s, s.committed_len, end, samples=end == s.num_prompt_tokens)
                for s in pending
                for end in [min(s.committed_len + chunk_size, s.num_prompt_tokens)]
            ]
            outputs = self.worker.step(Batch(prefill=pieces))
            for piece, output in zip(pieces, outputs, strict=True):
                piece.state.committed_len = piece.end
                piece.state.token_ids += output.token_ids

    def decode_step(self, states: Sequence[DecodeState]) -> list[StepOutput]:
        """One step of those that are not done; returns what it emitted."""
        running = [state for state in states if state.num_remaining > 0]
        for state in running:
            self._grow(state, state.committed_len + self.worker.num_window_slots)
        outputs = self.worker.step(Batch(decode=running))
        for output in outputs:
            kept = output.token_ids[: output.state.num_remaining]
            output.state.token_ids += kept
            output.state.committed_len += len(kept)
        self.observe(outputs)
        return outputs

    def decode(self, states: Sequence[DecodeState]) -> list[StepOutput]:
        """Decode to the end; returns the outputs of all steps."""
        outputs: list[StepOutput] = []
        while any(state.num_remaining > 0 for state in states):
            outputs += self.decode_step(states)
        return outputs

    def run(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[DecodeState]:
        states = [self.admit(prompt, max_new_tokens) for prompt in prompts]
        self.prefill(states)
        self.decode(states)
        return states

    def release(self, state: DecodeState) -> None:
        table = self.pools.req_to_token_pool
        self.pools.allocator.free(table.slots(state.row, 0, table.num_slots(state.row)).tolist())
        table.free_row(state.row)
        self.worker.release(state)

    def _grow(self, state: DecodeState, length: int) -> None:
        table, allocator = self.pools.req_to_token_pool, self.pools.allocator
        missing = length - table.num_slots(state.row)
        if missing > 0:
            slots = allocator.alloc(-(-missing // allocator.page_size))
            assert slots is not None
            table.append(state.row, slots)


def cached_tokens(
    driver: Driver, tp_worker: FakeTpWorker, state: DecodeState, end: int
) -> list[int]:
    """What a fake's cache holds for positions `0 .. end-1` of a request."""
    slots = driver.pools.req_to_token_pool.slots(state.row, 0, end)
    return [int(token) for token in tp_worker.token_to_kv_pool.k[0][slots, 0, 0]]
