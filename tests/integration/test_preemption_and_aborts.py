"""Requests that come, go and are preempted leave no trace: not in memory, not in texts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from app.config.sampling_params import SamplingParams
from app.engine import Engine
from app.results import GenerateResult, StreamDelta
from app.workers.batch import Batch, StepOutput
from tests.integration.engines import (
    TinyModels,
    accepted,
    free_tokens,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone

NUM_REQUESTS = 200
MOST_OPEN = 14
ABORT_PROBABILITY = 0.04


@dataclass
class Client:
    """One streamed request and what arrived of it."""

    prompt: list[int]
    params: SamplingParams
    deltas: Iterator[StreamDelta]
    token_ids: list[int] = field(default_factory=list)
    result: GenerateResult | None = None


def serve_at_random(engine: Engine, seed: int) -> list[Client]:
    """`NUM_REQUESTS` clients, up to `MOST_OPEN` at once; now and then one goes away."""
    generator = random.Random(seed)
    # Few different prompts, so that n-grams come back; lengths around the page borders.
    prompts = [random_prompt(generator.randrange(1, 50), seed=index) for index in range(30)]
    clients: list[Client] = []
    open_clients: list[Client] = []
    while len(clients) < NUM_REQUESTS or open_clients:
        if len(clients) < NUM_REQUESTS and len(open_clients) < MOST_OPEN:
            prompt = generator.choice(prompts)
            params = greedy(generator.randrange(1, 40))
            client = Client(prompt, params, engine.stream(prompt, params))
            clients.append(client)
            open_clients.append(client)
        client = generator.choice(open_clients)
        if generator.random() < ABORT_PROBABILITY:
            client.deltas.close()  # type: ignore[attr-defined]
            open_clients.remove(client)
            continue
        delta = next(client.deltas)
        client.token_ids.extend(delta.token_ids)
        if delta.result is not None:
            client.result = delta.result
            open_clients.remove(client)
    return clients


def run_during_steps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, actions: dict[int, Callable[[], None]]
) -> None:
    """Call `actions[n]` at the end of the worker's n-th step from now on, as a signal would."""
    worker = engine.scheduler.spec_worker
    step = worker.step
    numbers = itertools.count(1)

    def step_and_act(batch: Batch) -> list[StepOutput]:
        outputs = step(batch)
        actions.get(next(numbers), lambda: None)()
        return outputs

    monkeypatch.setattr(worker, "step", step_and_act)


@pytest.mark.parametrize(
    ("name", "page_size"),
    [("none", 4), *((name, size) for name in ("chain", "tree", "ngram") for size in (1, 16))],
)
def test_two_hundred_requests_with_aborts_and_too_little_memory(
    tiny: TinyModels, target_alone: TargetAlone, name: str, page_size: int
) -> None:
    settings = {
        "none": {},
        "chain": standalone(tiny.noisy, num_steps=3),
        "tree": standalone(tiny.noisy, num_steps=3, topk=2),
        "ngram": ngram(num_draft_tokens=6),
    }[name]
    with open_tiny(
        tiny.target,
        settings,
        page_size=page_size,
        max_total_tokens=240,
        max_running_requests=12,
        chunked_prefill_size=16,
    ) as engine:
        free_at_start = free_tokens(engine)
        clients = serve_at_random(engine, seed=page_size)
        status = engine.status()
        assert status["num_preemptions"] > 0
        assert (status["num_running"], status["num_waiting"]) == (0, 0)
        assert status["kv_cache_free_tokens"] == free_at_start
        (after,) = engine.generate([[7, 8, 9]], greedy(10))

    finished = [client for client in clients if client.result is not None]
    assert len(clients) == NUM_REQUESTS
    assert NUM_REQUESTS / 4 < len(finished) < NUM_REQUESTS
    for client in finished:
        assert client.result is not None
        assert client.result.finish_reason == "length"
        assert tuple(client.token_ids) == client.result.token_ids
        target_alone.assert_same(client.result, client.params.max_new_tokens)
    # What an aborted client has received is right as far as it goes.
    for client in clients:
        target_alone.assert_text(client.prompt, client.token_ids, len(client.token_ids))
    target_alone.assert_same(after, 10)
    if name != "none":
        assert accepted([client.result for client in finished if client.result]) > 0


def test_a_preempted_request_goes_on_where_it_was(
    tiny: TinyModels, target_alone: TargetAlone
) -> None:
    # Two requests of 20 + 40 tokens cannot both stay in 90 slots.
    prompts = [random_prompt(20, seed=1), random_prompt(20, seed=2)]
    with open_tiny(
        tiny.target, standalone(tiny.perfect, num_steps=3), max_total_tokens=90
    ) as engine:
        results = engine.generate(prompts, greedy(40))
        assert engine.status()["num_preemptions"] > 0
        assert free_tokens(engine) == 90
    for result in results:
        target_alone.assert_same(result, 40)
        assert result.spec is not None
        # A recomputed draft cache is exact: everything is accepted, as before.
        assert result.spec.accept_length is not None
        assert result.spec.accept_length > 3.5


def test_closing_a_stream_frees_its_memory_at_once(tiny: TinyModels) -> None:
    with open_tiny(tiny.target, standalone(tiny.noisy, num_steps=3)) as engine:
        free_at_start = free_tokens(engine)
        deltas = engine.stream(random_prompt(30, seed=1), greedy(40))
        next(deltas)
        assert free_tokens(engine) < free_at_start
        deltas.close()  # type: ignore[attr-defined]
        assert free_tokens(engine) == free_at_start


def test_interrupting_a_run_frees_its_memory(
    tiny: TinyModels, target_alone: TargetAlone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_prompt(length, seed=length) for length in (5, 12, 30)]
    with open_tiny(tiny.target, standalone(tiny.noisy, num_steps=3)) as engine:
        free_at_start = free_tokens(engine)

        def interrupt() -> None:
            raise KeyboardInterrupt

        run_during_steps(engine, monkeypatch, {6: interrupt})
        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompts, greedy(40))
        assert free_tokens(engine) == free_at_start
        for result in engine.generate(prompts, greedy(20)):
            target_alone.assert_same(result, 20)


def test_aborting_all_requests_keeps_what_they_have(
    tiny: TinyModels, target_alone: TargetAlone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_prompt(length, seed=length) for length in (5, 12, 30)]
    with open_tiny(tiny.target, standalone(tiny.noisy, num_steps=3)) as engine:
        free_at_start = free_tokens(engine)
        run_during_steps(engine, monkeypatch, {6: engine.abort})
        for result in engine.generate(prompts, greedy(60)):
            assert result.finish_reason == "abort"
            assert 0 < result.completion_tokens < 60
            target_alone.assert_text(prompts.pop(0), result.token_ids, result.completion_tokens)
        assert free_tokens(engine) == free_at_start
        (after,) = engine.generate([[7, 8, 9]], greedy(10))
    target_alone.assert_same(after, 10)


def test_an_abort_that_comes_too_late_hits_nobody_else(
    tiny: TinyModels, target_alone: TargetAlone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tiny(tiny.target) as engine:
        # The prefill is the first and last step of a request of one token.
        run_during_steps(engine, monkeypatch, {1: engine.abort})
        engine.generate([[7, 8, 9]], greedy(1))
        engine.abort()
        (after,) = engine.generate([[7, 8, 9]], greedy(10))
    target_alone.assert_same(after, 10)


def test_streams_that_take_turns_get_all_their_tokens(
    tiny: TinyModels, target_alone: TargetAlone
) -> None:
    # A step serves both: what one iterator's step emitted for the other must not get lost.
    prompts = [random_prompt(5, seed=5), random_prompt(9, seed=9)]
    with open_tiny(tiny.target, standalone(tiny.perfect, num_steps=3)) as engine:
        streams = [
            engine.stream(prompt, greedy(n)) for prompt, n in zip(prompts, (8, 33), strict=True)
        ]
        deltas: list[list[StreamDelta]] = [[], []]
        for own, stream in zip(deltas, streams, strict=True):
            own.append(next(stream))
        # The second one alone drives both to their ends.
        deltas[1].extend(streams[1])
        deltas[0].extend(streams[0])
    for own, prompt, num_tokens in zip(deltas, prompts, (8, 33), strict=True):
        token_ids = [token for delta in own for token in delta.token_ids]
        target_alone.assert_text(prompt, token_ids, num_tokens)
        assert [delta.finish_reason for delta in own if delta.finish_reason] == ["length"]
        assert own[-1].result is not None
