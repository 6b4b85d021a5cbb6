"""What every algorithm must keep, as tests that a plugin's author subclasses.

    class TestPromptLookup(AlgorithmContract):
        registration = registration

pytest collects the inherited tests. They run the whole engine on tiny random models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.engine import Engine, build_container, open_engine
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import NO_ALGORITHM, AlgorithmRegistration, AlgorithmRegistry
from app.testing.checkpoints import write_checkpoint
from app.testing.drafts import DRAFT_WRITERS
from app.workers.base import BaseSpecWorker

_VOCAB_SIZE = 64
_NUM_NEW_TOKENS = 16
# A repetition, a lone token, and lengths around the size of a page.
PROMPTS: tuple[tuple[int, ...], ...] = (
    (9, 30, 17, 9, 30, 17, 9, 30),
    (41,),
    tuple(range(10, 27)),
    (22, 22, 22, 22, 50, 22, 22, 22, 22, 50, 22, 22, 22),
)


class AlgorithmContract:
    """Set `registration`; `settings` are further fields of the target's record."""

    registration: ClassVar[AlgorithmRegistration]
    settings: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def test_greedy_text_is_the_targets(self, tmp_path: Path) -> None:
        """Whatever the draft proposes, greedy decoding gives what the target alone gives."""
        target = write_target(tmp_path)
        expected = _texts(target, NO_ALGORITHM, {}, builtin_algorithms(), greedy())
        for name, settings in self.variants(target):
            for page_size in (1, 16):
                given = {**settings, "page_size": page_size}
                found = _texts(target, self.registration.name, given, self.registry(), greedy())
                assert found == expected, f"{name} draft, page size {page_size}"

    def test_a_seed_fixes_sampled_text(self, tmp_path: Path) -> None:
        """Sampled text depends on the request's seed, not on what else is in the batch."""
        target = write_target(tmp_path)
        prompts = PROMPTS[:3]
        params = [sampled(seed) for seed in range(len(prompts))]
        for name, settings in self.variants(target):
            with self.engine(target, settings) as engine:
                together = generate(engine, prompts, params)
                apart = [
                    generate(engine, [prompt], [one])[0]
                    for prompt, one in zip(prompts, params, strict=True)
                ]
            assert together == apart, f"{name} draft"

    def test_preemption_changes_nothing_and_all_slots_return(self, tmp_path: Path) -> None:
        """A cache that is too small for all requests at once delays them, no more."""
        target = write_target(tmp_path)
        for name, settings in self.variants(target):
            with self.engine(target, settings) as engine:
                expected = generate(engine, PROMPTS, greedy())
                window = engine.scheduler.spec_worker.num_window_slots
            # Room for the longest request and its verify window, and a little more.
            tokens = max(map(len, PROMPTS)) + _NUM_NEW_TOKENS + window + 8
            with self.engine(target, {**settings, "max_total_tokens": tokens}) as engine:
                assert generate(engine, PROMPTS, greedy()) == expected, f"{name} draft"
                assert engine.scheduler.num_preemptions > 0, f"{name} draft"
                assert_no_slot_is_held(engine)

    def test_an_aborted_request_returns_its_slots(self, tmp_path: Path) -> None:
        """Closing a stream half way leaves nothing behind, and the next request is unharmed."""
        target = write_target(tmp_path)
        for name, settings in self.variants(target):
            with self.engine(target, settings) as engine:
                expected = generate(engine, PROMPTS, greedy())
                stream = engine.stream(list(PROMPTS[0]), greedy())
                next(stream)
                next(stream)
                stream.close()  # type: ignore[attr-defined]
                assert_no_slot_is_held(engine)
                assert generate(engine, PROMPTS, greedy()) == expected, f"{name} draft"

    def test_factory_and_worker_get_the_draft_copy(self, tmp_path: Path) -> None:
        """Both see one record, published while they see it, and the target's stays as it was."""
        target = write_target(tmp_path)
        for _, settings in self.variants(target):
            seen: list[tuple[ServerArgs, ServerArgs]] = []

            def create_worker(server_args: ServerArgs) -> type[BaseSpecWorker]:
                seen.append((server_args, container.runtime_context().server_args))  # noqa: B023
                return self.registration.create_worker(server_args)

            registry = _with(replace(self.registration, create_worker=create_worker))
            container = build_container(record(target, self.registration.name, settings), registry)
            resolved_before: str = container.target_config().model_dump_json()
            with open_engine(container) as engine:
                worker_args = engine.scheduler.spec_worker.server_args
                published_after = container.runtime_context().server_args
                target_args = container.target.tp_worker().server_args
            assert [args is worker_args for pair in seen for args in pair] == [True, True]
            assert worker_args.is_draft_copy
            assert worker_args is not target_args
            assert published_after is container.runtime_context().resolved
            assert _without_gates(target_args) == _without_gates(
                ServerArgs.model_validate_json(resolved_before)
            )

    def variants(self, target: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
        """(name, settings): every quality of draft where there is a draft model."""
        if not self.registration.has_draft_model:
            yield "no model as", self.settings
            return
        for name, write in DRAFT_WRITERS.items():
            path = target.with_name(f"{name}-draft")
            if not path.exists():
                write(target, path)
            yield name, {**self.settings, "speculative_draft_model_path": str(path)}

    def registry(self) -> AlgorithmRegistry:
        return _with(self.registration)

    @contextmanager
    def engine(self, target: Path, settings: Mapping[str, object]) -> Iterator[Engine]:
        args = record(target, self.registration.name, settings)
        with open_engine(args, algorithms=self.registry()) as engine:
            yield engine


def write_target(directory: Path) -> Path:
    """A tiny random target."""
    return write_checkpoint(
        directory / "target", vocab_size=_VOCAB_SIZE, num_layers=2, max_position_embeddings=128
    )


def record(target: Path, algorithm: str, settings: Mapping[str, object]) -> ServerArgs:
    """A record for prompts of token ids, in float32 on the CPU."""
    return ServerArgs.model_validate(
        {
            "model_path": str(target),
            "speculative_algorithm": None if algorithm == NO_ALGORITHM else algorithm,
            "skip_tokenizer_init": True,
            "device": "cpu",
            "dtype": "float32",
            "chunked_prefill_size": 6,
            "max_running_requests": 8,
            "max_total_tokens": 1024,
            "random_seed": 0,
            **settings,
        }
    )


def greedy() -> SamplingParams:
    return SamplingParams(max_new_tokens=_NUM_NEW_TOKENS, ignore_eos=True)


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.9, top_p=0.95, seed=seed, max_new_tokens=_NUM_NEW_TOKENS, ignore_eos=True
    )


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[tuple[int, ...]]:
    """The token ids of each prompt's text; an error of one fails the test."""
    results = engine.generate([list(prompt) for prompt in prompts], params)
    assert [result.error for result in results] == [None] * len(prompts)
    return [result.token_ids for result in results]


def assert_no_slot_is_held(engine: Engine) -> None:
    """Every slot and every row of the table is free again."""
    pools = engine.scheduler.pools
    assert pools.allocator.num_free_slots == pools.allocator.capacity
    assert pools.req_to_token_pool.num_free_rows == engine.server_args.max_running_requests


def _texts(
    target: Path,
    algorithm: str,
    settings: Mapping[str, object],
    algorithms: AlgorithmRegistry,
    params: SamplingParams,
) -> list[tuple[int, ...]]:
    with open_engine(record(target, algorithm, settings), algorithms=algorithms) as engine:
        return generate(engine, PROMPTS, params)


def _with(registration: AlgorithmRegistration) -> AlgorithmRegistry:
    """The built-in algorithms and `registration`, which may stand for one of them."""
    known = {item.name: item for item in builtin_algorithms()}
    return AlgorithmRegistry({**known, registration.name: registration})


def _without_gates(server_args: ServerArgs) -> dict[str, object]:
    """The record without what loading the target decides."""
    return server_args.model_dump(exclude={"prefill_kernel", "disable_chunked_prefix_cache"})
