"""The engine: prompts in, texts out; owns the lifetime of what its container builds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from app.config.explain import explain
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.containers import EngineContainer, without_weights
from app.loading.model_zoo import ensure_available
from app.results import GenerateResult, StreamDelta, result_of
from app.runtime_context import RuntimeContext
from app.scheduling.request import FinishReason, Request
from app.scheduling.scheduler import Scheduler
from app.scheduling.stop_conditions import StopConditions
from app.speculative.registry import AlgorithmRegistry
from app.tokenizer import NoTokenizer, Prompt, Tokenizer


class Engine:
    """Decodes prompts with one target and its draft. Use it from one thread at a time."""

    def __init__(
        self,
        *,
        runtime_context: RuntimeContext,
        tokenizer: Tokenizer | NoTokenizer,
        scheduler: Scheduler,
        hf_eos_token_ids: Sequence[int],
    ) -> None:
        self._runtime_context = runtime_context
        self._tokenizer = tokenizer
        scheduler.attach()
        self._scheduler = scheduler
        self._eos_token_ids = frozenset(hf_eos_token_ids) | tokenizer.eos_token_ids
        # Only gives requests their seeds; every draw after that is a hash of the seed.
        self._seeds = random.Random(runtime_context.resolved.random_seed)
        self._is_closed = False

    @property
    def server_args(self) -> ServerArgs:
        """The target's resolved record."""
        return self._runtime_context.resolved

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        raw: bool = False,
        on_result: Callable[[int, GenerateResult], None] | None = None,
    ) -> list[GenerateResult]:
        """Decode prompts together; results in their order. A refused prompt has `error` set, the
        others run. `raw` skips the chat template. `on_result(index, result)` hears of each prompt
        as soon as it has ended."""
        if isinstance(prompts, str):
            raise ValueError("prompts: give a list of prompts, not one text")
        each = _params_for_each(params, len(prompts))
        results: dict[int, GenerateResult] = {}
        requests: dict[int, Request] = {}

        def finish(index: int, result: GenerateResult) -> None:
            results[index] = result
            if on_result is not None:
                on_result(index, result)

        try:
            for index, (prompt, prompt_params) in enumerate(zip(prompts, each, strict=True)):
                try:
                    requests[index] = self._submit(prompt, prompt_params, raw)
                except ValueError as error:
                    finish(index, GenerateResult(prompt=prompt, error=str(error)))
            while len(results) < len(prompts):
                for index, request in requests.items():
                    if index not in results and request.finish_reason is not None:
                        _raise_failure(request)
                        finish(index, result_of(prompts[index], request, self._algorithm))
                if len(results) < len(prompts):
                    self._scheduler.step()
        finally:
            for request in requests.values():
                self._scheduler.abort(request)
        return [results[index] for index in range(len(prompts))]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, raw: bool = False
    ) -> Iterator[StreamDelta]:
        """Decode one prompt, giving what each step emits. Closing the iterator aborts the request.
        Raises ValueError at the first step when the prompt is refused."""
        request = self._submit(prompt, params or SamplingParams(), raw)
        num_given = 0
        reason: FinishReason | None = None
        try:
            while reason is None:
                # One step serves all requests: another iterator's may have served or ended this.
                while request.finish_reason is None and request.num_output_tokens == num_given:
                    self._scheduler.step()
                _raise_failure(request)
                reason = request.finish_reason
                token_ids, from_draft = request.output_since(num_given)
                num_given += len(token_ids)
                yield StreamDelta(
                    text=request.stop.take_delta(is_finished=reason is not None),
                    token_ids=tuple(token_ids),
                    from_draft=tuple(from_draft),
                    finish_reason=reason.value if reason else None,
                    result=result_of(prompt, request, self._algorithm) if reason else None,
                )
        finally:
            self._scheduler.abort(request)

    def abort(self) -> None:
        """End all requests before their next step; they keep what they have emitted, and
        `generate` and `stream` return it. May be called from any thread or a signal handler."""
        self._scheduler.abort_all()

    def _submit(self, prompt: Prompt, params: SamplingParams, raw: bool) -> Request:
        if self._is_closed:
            raise RuntimeError("the engine is closed")
        token_ids = self._tokenizer.encode(prompt, raw=raw)
        vocab_size = self._scheduler.vocab_size
        out_of_range = [token for token in token_ids if not 0 <= token < vocab_size]
        if out_of_range:
            raise ValueError(
                f"the prompt holds token id {out_of_range[0]}; the model has ids 0 to "
                f"{vocab_size - 1}"
            )
        request = Request(
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            params=params,
            seed=0 if params.seed is None else params.seed,
            max_len=len(token_ids) + params.max_new_tokens,
            stop=StopConditions(params, self._eos_token_ids, self._tokenizer.detokenizer()),
        )
        self._scheduler.submit(request)
        if params.seed is None:
            # Behind the admission: a refused prompt must not shift the seeds of the next ones.
            request.seed = self._seeds.getrandbits(62)
        return request

    @property
    def _algorithm(self) -> str | None:
        return self._scheduler.algorithm

    def status(self) -> dict[str, Any]:
        """What runs, with the target's own configuration values."""
        scheduler = self._scheduler
        return {
            "server_args": self.server_args.model_dump(mode="json"),
            "algorithm": scheduler.algorithm,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "num_preemptions": scheduler.num_preemptions,
            "kv_cache_tokens": scheduler.pools.allocator.capacity,
            "kv_cache_free_tokens": scheduler.pools.allocator.num_free_slots,
        }

    def close(self) -> None:
        """Abort what runs and drop the worker. Closing twice is closing once."""
        if not self._is_closed:
            self._is_closed = True
            self._scheduler.close()


def _raise_failure(request: Request) -> None:
    """A step that failed under another caller ended this request too."""
    if request.failure is not None:
        raise RuntimeError(f"the step failed: {request.failure}") from request.failure


def _params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(f"params: {len(params)} sets were given for {num_prompts} prompts")
    return params


@contextmanager
def open_engine(
    server_args: ServerArgs | EngineContainer, *, algorithms: AlgorithmRegistry | None = None
) -> Iterator[Engine]:
    """Build an engine, hand it out, and close it.

    Give a record, or a container whose providers were overridden. Models that the project knows by
    name are fetched first. Raises ValueError naming the stage and the field when something does not
    fit.
    """
    if isinstance(server_args, ServerArgs):
        container = build_container(server_args, algorithms)
    else:
        if algorithms is not None:
            raise ValueError("algorithms: a container has its own; give them to EngineContainer")
        container = server_args
    with ExitStack() as stack:
        ensure_models(container)
        # Before the tokenizer: a fault of the model's config must not read as one of the tokenizer.
        model_config = container.target.tp_worker().model_config
        engine = Engine(
            runtime_context=container.runtime_context(),
            tokenizer=container.tokenizer(),
            scheduler=container.scheduler(),
            hf_eos_token_ids=model_config.hf_eos_token_ids,
        )
        # A container outlives its engine: opened again it keeps the target and builds a new draft.
        stack.callback(container.scheduler.reset)
        stack.callback(engine.close)
        yield engine


def build_container(
    server_args: ServerArgs, algorithms: AlgorithmRegistry | None = None
) -> EngineContainer:
    """A fresh container; `algorithms` replaces the registry."""
    if algorithms is None:
        return EngineContainer(server_args=server_args)
    return EngineContainer(server_args=server_args, algorithms=algorithms)


def ensure_models(container: EngineContainer) -> None:
    """Fetch models that are given by a name the project knows and that are not cached yet."""
    record = container.target_config()
    algorithm = container.algorithms().get(record.speculative_algorithm)
    needed = [
        record.model_path,
        None if record.skip_tokenizer_init else record.tokenizer_path,
        # Without an algorithm that drafts with a model, a draft that is named is not fetched.
        record.speculative_draft_model_path if algorithm.has_draft_model else None,
    ]
    for name in dict.fromkeys(needed):
        if name is not None:
            ensure_available(name)


def explain_config(server_args: ServerArgs) -> dict[str, Any]:
    """Where every value of the target's and the draft's record comes from, and which differ.

    The target is a meta-device model that runs the same load-time gates; no weight is read.
    """
    container = without_weights(build_container(server_args))
    target_config = container.target_config()
    ensure_models(container)
    container.target.tp_worker()
    algorithm = container.algorithms().get(target_config.speculative_algorithm)
    has_draft = algorithm.is_speculative and target_config.speculative_num_steps != 0
    draft = container.draft_config() if has_draft else None
    return explain(container.runtime_context().resolved, draft)
