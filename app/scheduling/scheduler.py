"""Continuous batching: requests join and leave between steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from app.memory.allocator import PagedAllocator
from app.memory.pools import MemoryPools
from app.memory.req_to_token_pool import ReqToTokenPool
from app.memory.sizing import num_kv_pages
from app.memory.token_to_kv_pool import kv_bytes_per_token
from app.runtime_context import RuntimeContext
from app.scheduling.batch import PrefillPlanner
from app.scheduling.draft_handoff import DraftScopeLike, build_spec_worker
from app.scheduling.prefix_cache import BasePrefixCache, NoPrefixCache
from app.scheduling.request import FinishReason, Request
from app.speculative.registry import AlgorithmRegistry
from app.workers.base import BaseSpecWorker
from app.workers.batch import Batch, StepOutput
from app.workers.target_only_worker import TargetOnlyWorker
from app.workers.tp_worker import BaseTpWorker


class Scheduler:
    """Admits requests, gives them slots, steps the worker, and applies stop conditions.

    It never asks which algorithm runs. It is driven from one thread.
    """

    def __init__(
        self,
        *,
        runtime_context: RuntimeContext,
        target_worker: BaseTpWorker,
        algorithms: AlgorithmRegistry,
        draft_scope: Callable[[], DraftScopeLike],
    ) -> None:
        self._runtime_context = runtime_context
        self._target_worker = target_worker
        self._algorithms = algorithms
        self._draft_scope = draft_scope
        self.waiting: deque[Request] = deque()
        # In order of admission; the youngest is preempted first.
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._last_was_prefill = False
        self._num_submitted = 0
        # Requests with a lower id end before the next step.
        self._abort_below = 0
        self._is_attached = False
        self.spec_worker = self.maybe_init_draft_worker()
        self.pools = self._init_memory_pools()
        self.prefix_cache: BasePrefixCache = NoPrefixCache(self.pools.allocator)
        self.spec_worker.init_attention_backends()
        server_args = runtime_context.resolved
        unchunked = (
            server_args.disable_chunked_prefix_cache or server_args.chunked_prefill_size == -1
        )
        self._planner = PrefillPlanner(None if unchunked else server_args.chunked_prefill_size)

    def maybe_init_draft_worker(self) -> BaseSpecWorker:
        """Make one draft scope and build its worker, or decode with the target alone."""
        server_args = self._runtime_context.resolved
        algorithm = self._algorithms.get(server_args.speculative_algorithm)
        if not algorithm.is_speculative or server_args.speculative_num_steps == 0:
            return TargetOnlyWorker(
                server_args=server_args,
                target_worker=self._target_worker,
                draft_worker=lambda: self._target_worker,
            )
        try:
            scope = self._draft_scope()
        except ValueError as error:
            raise ValueError(f"draft configuration ({algorithm.name}): {error}") from error
        return build_spec_worker(scope, self._runtime_context)

    def _init_memory_pools(self) -> MemoryPools:
        server_args = self._runtime_context.resolved
        worker = self._target_worker
        context_len = worker.model_config.context_len
        window = self.spec_worker.num_window_slots
        page_size = server_args.page_size
        num_pages = num_kv_pages(
            server_args,
            bytes_per_token=kv_bytes_per_token(worker.kv_geometry, worker.kv_cache_dtype)
            + self.spec_worker.draft_bytes_per_token,
            context_len=context_len,
            num_window_slots=window,
        )
        assert server_args.max_running_requests is not None, "resolution sets it"
        num_columns = -(-(context_len + window) // page_size) * page_size
        pools = MemoryPools(
            ReqToTokenPool(server_args.max_running_requests, num_columns, worker.device),
            PagedAllocator(num_pages, page_size),
        )
        self.spec_worker.alloc_memory_pool(pools)
        return pools

    @property
    def vocab_size(self) -> int:
        return self._target_worker.model_config.vocab_size

    @property
    def algorithm(self) -> str | None:
        """The algorithm in force; None when the target decodes alone."""
        if isinstance(self.spec_worker, TargetOnlyWorker):
            return None
        return self._runtime_context.resolved.speculative_algorithm

    @property
    def max_request_len(self) -> int:
        """Prompt and output of one request: the context, or what the whole KV cache holds."""
        in_cache = self.pools.allocator.capacity - self.spec_worker.num_window_slots + 1
        return min(self._target_worker.model_config.context_len, in_cache)

    def attach(self) -> None:
        """Take the scheduler for one engine. Raises RuntimeError when it has one."""
        if self._is_attached:
            raise RuntimeError(
                "the container has an open engine; close it first, or make another container"
            )
        self._is_attached = True

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError when its prompt can never run."""
        if request.num_prompt_tokens >= self.max_request_len:
            raise ValueError(
                f"the prompt has {request.num_prompt_tokens} tokens, but a request may have at most"
                f" {self.max_request_len} with one new token (context_length "
                f"{self._target_worker.model_config.context_len}, KV cache of "
                f"{self.pools.allocator.capacity} tokens)"
            )
        request.max_len = min(request.max_len, self.max_request_len)
        request.submitted_at = time.perf_counter()
        request.request_id = self._num_submitted
        self._num_submitted += 1
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request between steps; it keeps what it has emitted."""
        if request.finish_reason is not None:
            return
        request.finish_reason = FinishReason.ABORT
        request.stop.finish()
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.spec_worker.forget(request)

    def abort_all(self) -> None:
        """End every request that has been submitted, before the next step. May be called from any
        thread."""
        self._abort_below = self._num_submitted

    def step(self) -> list[Request]:
        """Run one batch; returns the requests that emitted tokens or ended."""
        aborted = [r for r in (*self.running, *self.waiting) if r.request_id < self._abort_below]
        if aborted:
            for request in aborted:
                self.abort(request)
            return aborted
        self._admit()
        batch = self._next_batch()
        try:
            outputs = self.spec_worker.step(batch)
        except BaseException as failure:
            # The caches of a step that broke off half way are unknown; waiting requests are not.
            for request in list(self.running):
                request.failure = failure
                self.abort(request)
            if isinstance(failure, ValueError):
                # A fault of the algorithm; ValueError would read as a fault of the prompt.
                raise RuntimeError(str(failure)) from failure
            raise
        for piece in batch.prefill:
            piece.state.committed_len = piece.end
        now = time.perf_counter()
        touched: list[Request] = []
        for output in outputs:
            assert isinstance(output.state, Request), "workers hand back what they were given"
            if output.token_ids:
                self._commit(output.state, output, now)
                touched.append(output.state)
        for request in touched:
            if request.finish_reason is not None:
                self.running.remove(request)
                self._release(request)
                self.spec_worker.forget(request)
        return touched

    def _admit(self) -> None:
        while self.waiting and self.pools.req_to_token_pool.num_free_rows:
            request = self.waiting[0]
            # A request that was preempted recomputes all but its bonus token.
            request.prefill_len = len(request.token_ids) - (1 if request.has_output else 0)
            needed = request.prefill_len + self.spec_worker.num_window_slots
            if self.running and needed > self.pools.allocator.num_free_slots:
                return
            self.waiting.popleft()
            request.row = self.pools.req_to_token_pool.take_row()
            cached = self.prefix_cache.match(request.token_ids[: request.prefill_len])
            self.pools.req_to_token_pool.append(request.row, cached)
            request.allocated_len = request.committed_len = len(cached)
            self.running.append(request)
            fits = self._grow(request, request.prefill_len)
            assert fits, "submit refuses prompts that the whole cache cannot hold"

    def _grow(self, request: Request, length: int) -> bool:
        """Give a request slots for `length` tokens; false when there are not enough."""
        allocator = self.pools.allocator
        missing = length - request.allocated_len
        if missing <= 0:
            return True
        slots = allocator.alloc(-(-missing // allocator.page_size))
        if slots is None:
            return False
        self.pools.req_to_token_pool.append(request.row, slots)
        request.allocated_len += len(slots)
        return True

    def _next_batch(self) -> Batch:
        prefilling = [request for request in self.running if request.is_prefilling]
        decoding = [request for request in self.running if not request.is_prefilling]
        # One decode step between two prefill steps, so that a long prompt stops nobody.
        if prefilling and not (decoding and self._last_was_prefill):
            self._last_was_prefill = True
            return Batch(prefill=self._planner.plan(prefilling))
        self._last_was_prefill = False
        return Batch(decode=self._with_window_slots(decoding))

    def _with_window_slots(self, decoding: list[Request]) -> list[Request]:
        """Make room for one step of each request, oldest first; preempt the youngest if need be."""
        for request in decoding:
            if request.row < 0:
                continue  # preempted on behalf of an older one
            length = request.committed_len + self.spec_worker.num_window_slots
            while request.row >= 0 and not self._grow(request, length):
                self._preempt(self.running[-1])
        return [request for request in decoding if request.row >= 0]

    def _preempt(self, request: Request) -> None:
        """Take a request's slots; it recomputes its tokens when there is room again."""
        assert len(self.running) > 1, "max_request_len lets one request always fit"
        self.num_preemptions += 1
        self.running.remove(request)
        self._release(request)
        self.waiting.appendleft(request)

    def _commit(self, request: Request, output: StepOutput, now: float) -> None:
        """Append emitted tokens one by one, up to the one that ends the request."""
        was_decoding = request.has_output
        num_kept = 0
        for index, token_id in enumerate(output.token_ids):
            request.token_ids.append(token_id)
            request.from_draft.append(index < output.num_from_draft)
            num_kept += 1
            if request.stop.accept(token_id):
                request.finish_reason = FinishReason.STOP
                break
            if request.num_remaining == 0:
                request.finish_reason = FinishReason.LENGTH
                request.stop.finish()
                break
        if was_decoding:
            request.committed_len += num_kept
        if output.num_proposed is not None:
            request.metrics.record(
                num_proposed=output.num_proposed,
                num_accepted=min(output.num_from_draft, num_kept),
                num_emitted=num_kept,
            )
        if request.first_token_at is None:
            request.first_token_at = now
        request.last_token_at = now

    def _release(self, request: Request) -> None:
        table = self.pools.req_to_token_pool
        slots = table.slots(request.row, 0, request.allocated_len).tolist()
        self.prefix_cache.release(request.token_ids[: request.committed_len], slots)
        table.free_row(request.row)
        self.spec_worker.release(request)
        request.row = -1
        request.allocated_len = request.committed_len = 0

    def close(self) -> None:
        """Abort what runs and close the worker."""
        for request in [*self.running, *self.waiting]:
            self.abort(request)
        self.spec_worker.close()
