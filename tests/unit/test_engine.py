"""Opening an engine over fakes: what is fetched, what is refused, and what closing means."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from dependency_injector import providers

import app.engine
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.containers import EngineContainer
from app.engine import open_engine
from app.speculative.builtin import builtin_algorithms
from app.testing.fakes import FakeTpWorker

DRAFT = {"speculative_draft_model_path": "smollm2-135m-shallow"}


def container(**fields: Any) -> Any:
    given = {"model_path": "smollm2-135m", "max_total_tokens": 200, "skip_tokenizer_init": True}
    built: Any = EngineContainer(server_args=ServerArgs(**(given | fields)))
    built.target.tp_worker.override(providers.Singleton(FakeTpWorker))
    return built


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of models that would be fetched."""
    names: list[str] = []
    monkeypatch.setattr(app.engine, "ensure_available", names.append)
    return names


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["smollm2-135m"]),
        ({"speculative_algorithm": "NGRAM"}, ["smollm2-135m"]),
        ({**DRAFT, "speculative_algorithm": "NONE"}, ["smollm2-135m"]),
        ({**DRAFT, "speculative_algorithm": "STANDALONE", "speculative_num_steps": 0},
         ["smollm2-135m"]),
        ({"skip_tokenizer_init": False, "tokenizer_path": "other"}, ["smollm2-135m", "other"]),
        ({"skip_tokenizer_init": False}, ["smollm2-135m"]),
        ({**DRAFT, "speculative_algorithm": "STANDALONE"},
         ["smollm2-135m", "smollm2-135m-shallow"]),
    ],
)  # fmt: skip
def test_only_what_is_needed_is_fetched(
    fetched: list[str], fields: dict[str, Any], expected: list[str]
) -> None:
    app.engine.ensure_models(container(**fields))
    assert fetched == expected


def test_a_registry_beside_a_container_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="give them to EngineContainer"),
        open_engine(container(), algorithms=builtin_algorithms()),
    ):
        pass


def test_a_closed_engine_says_so(fetched: list[str]) -> None:
    with open_engine(container(speculative_algorithm="NGRAM")) as engine:
        assert engine.generate([[1, 2]], SamplingParams(max_new_tokens=3))[0].completion_tokens == 3
        stream = engine.stream([1, 2], SamplingParams(max_new_tokens=3))
        engine.close()
        engine.close()
        with pytest.raises(RuntimeError, match="the engine is closed"):
            next(stream)
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.generate([[1, 2]])


def test_a_failing_step_aborts_its_requests_and_nothing_else(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_new_tokens=6)
    with open_engine(container(speculative_algorithm="NGRAM")) as engine:
        expected = engine.generate([[5, 6]], params)[0].token_ids
        worker: Any = engine.scheduler.spec_worker
        with monkeypatch.context() as patched:
            patched.setattr(worker, "propose", lambda states: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.generate([[5, 6], [7]], params)
        status = engine.status()
        assert (status["num_running"], status["num_waiting"]) == (0, 0)
        assert status["kv_cache_free_tokens"] == status["kv_cache_tokens"]
        assert engine.generate([[5, 6]], params)[0].token_ids == expected


def test_params_are_one_for_all_or_one_each(fetched: list[str]) -> None:
    with open_engine(container()) as engine:
        counts = [SamplingParams(max_new_tokens=count) for count in (1, 2)]
        results = engine.generate([[1], [2]], counts)
        assert [result.completion_tokens for result in results] == [1, 2]
        with pytest.raises(ValueError, match="2 sets were given for 3 prompts"):
            engine.generate([[1], [2], [3]], counts)
        assert engine.generate([]) == []


def test_requests_of_an_engine_with_a_seed_repeat(fetched: list[str]) -> None:
    params = SamplingParams(max_new_tokens=8, temperature=1.0)
    texts = []
    for seed in (3, 3, 4):
        with open_engine(container(random_seed=seed)) as engine:
            texts.append([r.token_ids for r in engine.generate([[1], [1]], params)])
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]


def test_abort_from_another_thread_ends_requests_with_what_they_have(fetched: list[str]) -> None:
    with open_engine(container()) as engine:
        stream = engine.stream([3, 1, 4], SamplingParams(max_new_tokens=50, ignore_eos=True))
        first = next(stream)
        thread = threading.Thread(target=engine.abort)
        thread.start()
        thread.join()
        (last,) = list(stream)
        assert last.finish_reason == "abort"
        assert last.result is not None
        assert last.result.token_ids == first.token_ids
        status = engine.status()
        assert status["kv_cache_free_tokens"] == status["kv_cache_tokens"]
        (after,) = engine.generate([[3, 1, 4]], SamplingParams(max_new_tokens=2, ignore_eos=True))
        assert (after.finish_reason, after.completion_tokens) == ("length", 2)


def test_an_abort_ends_what_was_submitted_before_it_and_nothing_later(fetched: list[str]) -> None:
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    with open_engine(container()) as engine:
        stream = engine.stream([3, 1, 4], params)
        next(stream)
        engine.abort()
        stream.close()
        results = engine.generate([[1], [2]], params)
        assert [r.finish_reason for r in results] == ["length", "length"]
        engine.abort()
        assert engine.generate([[1]], params)[0].finish_reason == "length"


def test_a_container_serves_one_engine_at_a_time(fetched: list[str]) -> None:
    shared = container(speculative_algorithm="NGRAM")
    params = SamplingParams(max_new_tokens=3)
    with open_engine(shared) as engine:
        with (
            pytest.raises(RuntimeError, match="the container has an open engine"),
            open_engine(shared),
        ):
            pass
        assert engine.generate([[1, 2]], params)[0].completion_tokens == 3
    with open_engine(shared) as engine:
        assert engine.generate([[1, 2]], params)[0].completion_tokens == 3


def test_a_refused_prompt_does_not_shift_the_seeds_of_others(fetched: list[str]) -> None:
    params = SamplingParams(max_new_tokens=8, temperature=1.0)
    texts = []
    for prompts in ([[1, 2]], [[10**6], [5] * 500, [], [1, 2]]):
        with open_engine(container(random_seed=5, context_length=64)) as engine:
            texts.append(engine.generate(prompts, params)[-1].token_ids)
    assert texts[0] == texts[1] != ()


def test_a_step_that_fails_under_one_caller_is_told_to_the_others(
    fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    with open_engine(container(speculative_algorithm="NGRAM")) as engine:
        stream = engine.stream([5, 6], params)
        next(stream)
        worker: Any = engine.scheduler.spec_worker
        with monkeypatch.context() as patched:
            patched.setattr(worker, "propose", lambda states: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.generate([[7]], params)
        with pytest.raises(RuntimeError, match="the step failed: division by zero"):
            next(stream)


def test_results_are_told_as_prompts_end(fetched: list[str]) -> None:
    told: list[int] = []
    counts = [SamplingParams(max_new_tokens=n, ignore_eos=True) for n in (6, 2, 4)]
    with open_engine(container()) as engine:
        results = engine.generate(
            [[1], [2], [3]], counts, on_result=lambda index, result: told.append(index)
        )
    assert told == [1, 2, 0]
    assert [result.completion_tokens for result in results] == [6, 2, 4]


def test_one_text_is_no_list_of_prompts(fetched: list[str]) -> None:
    with open_engine(container()) as engine, pytest.raises(ValueError, match="a list of prompts"):
        engine.generate("hello")
