"""A request's seed alone decides its sampled text: no draft, batch or neighbour changes it."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from app.config.sampling_params import SamplingParams
from app.engine import Engine
from tests.integration.engines import (
    TinyModels,
    accepted,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)

PROMPTS = [random_prompt(length, seed=length) for length in range(1, 17)]
NUM_TOKENS = 24


def sampled(seed: int | None = None, **more: object) -> SamplingParams:
    values: dict[str, object] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, **more}
    return SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, seed=seed, **values)


SEEDED = [sampled(seed=1000 + index) for index in range(len(PROMPTS))]


def texts(engine: Engine, params: list[SamplingParams] = SEEDED) -> list[tuple[int, ...]]:
    return [result.token_ids for result in engine.generate(PROMPTS, params)]


@pytest.fixture(scope="module")
def texts_alone(tiny: TinyModels) -> list[tuple[int, ...]]:
    """Sampled by the target alone, one request at a time."""
    with open_tiny(tiny.target, max_running_requests=1) as engine:
        return texts(engine)


def speculations(tiny: TinyModels) -> dict[str, dict[str, object]]:
    return {
        "perfect": standalone(tiny.perfect, num_steps=4),
        "noisy": standalone(tiny.noisy, num_steps=4),
        "unrelated": standalone(tiny.unrelated, num_steps=2),
        "tree": standalone(tiny.noisy, num_steps=3, topk=3),
        "ngram": ngram(num_draft_tokens=6),
    }


@pytest.mark.parametrize("name", ["perfect", "noisy", "unrelated", "tree", "ngram"])
@pytest.mark.parametrize("max_running_requests", [1, 4, 16])
def test_a_seeded_text_is_the_same_with_any_draft(
    tiny: TinyModels,
    texts_alone: list[tuple[int, ...]],
    name: str,
    max_running_requests: int,
) -> None:
    settings = speculations(tiny)[name]
    with open_tiny(
        tiny.target, settings, random_seed=77, max_running_requests=max_running_requests
    ) as engine:
        results = engine.generate(PROMPTS, SEEDED)
    assert [result.token_ids for result in results] == texts_alone
    if name in ("perfect", "noisy", "tree"):
        assert accepted(results) > len(PROMPTS)


def test_a_seeded_text_survives_preemption(
    tiny: TinyModels, texts_alone: list[tuple[int, ...]]
) -> None:
    settings = standalone(tiny.noisy, num_steps=4)
    with open_tiny(tiny.target, settings, max_total_tokens=110) as engine:
        assert texts(engine) == texts_alone
        assert engine.status()["num_preemptions"] > 0


RULES: dict[str, Mapping[str, object]] = {
    "default": {},
    "rejection": {"speculative_use_rejection_sampling": True},
    "block": {"speculative_use_block_verification": True},
}


@pytest.mark.parametrize("rule", RULES)
def test_order_and_batch_size_change_no_seeded_text(tiny: TinyModels, rule: str) -> None:
    settings = {**standalone(tiny.noisy, num_steps=3), **RULES[rule]}
    order = list(range(len(PROMPTS)))
    random.Random(3).shuffle(order)
    with open_tiny(tiny.target, settings) as engine:
        one_by_one = [engine.generate([PROMPTS[i]], SEEDED[i])[0].token_ids for i in order]
        for batch_size in (4, 16):
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                results = engine.generate([PROMPTS[i] for i in batch], [SEEDED[i] for i in batch])
                expected = one_by_one[start : start + batch_size]
                assert [result.token_ids for result in results] == expected


def test_another_seed_gives_another_text(
    tiny: TinyModels, texts_alone: list[tuple[int, ...]]
) -> None:
    others = [sampled(seed=2000 + index) for index in range(len(PROMPTS))]
    with open_tiny(tiny.target, standalone(tiny.noisy, num_steps=4)) as engine:
        assert all(
            ours != theirs for ours, theirs in zip(texts(engine, others), texts_alone, strict=True)
        )


@pytest.mark.parametrize("rule", RULES)
def test_unseeded_requests_are_not_identical(tiny: TinyModels, rule: str) -> None:
    settings = {**standalone(tiny.noisy, num_steps=3), **RULES[rule]}
    with open_tiny(tiny.target, settings) as engine:
        results = engine.generate([PROMPTS[5]] * 20, sampled())
    assert len({result.token_ids for result in results}) == 20


def test_the_engines_seed_reproduces_a_run(tiny: TinyModels) -> None:
    unseeded = [sampled()] * len(PROMPTS)

    def run(random_seed: int | None) -> list[tuple[int, ...]]:
        settings = standalone(tiny.noisy, num_steps=3)
        with open_tiny(tiny.target, settings, random_seed=random_seed) as engine:
            return texts(engine, unseeded)

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert run(None) != run(None)


def test_a_seed_does_not_reach_other_requests(tiny: TinyModels) -> None:
    def greedy_text(neighbour_seed: int) -> tuple[int, ...]:
        params = [greedy(NUM_TOKENS), *(sampled(neighbour_seed + i) for i in range(3))]
        with open_tiny(tiny.target, standalone(tiny.noisy, num_steps=3)) as engine:
            return engine.generate(PROMPTS[:4], params)[0].token_ids

    assert greedy_text(10) == greedy_text(20)
