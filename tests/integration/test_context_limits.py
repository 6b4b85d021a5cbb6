"""A draft's shorter context limits neither the target's context nor its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.engine import Engine
from app.testing.checkpoints import write_checkpoint
from tests.integration.engines import (
    VOCAB_SIZE,
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

TARGET_LIMIT, DRAFT_LIMIT = 128, 32
# Around the draft's limit, far from it on both sides, and a generation that crosses it.
PROMPT_LENGTHS = (5, 28, 31, 32, 33, 60)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("long"), TARGET_LIMIT)


@pytest.fixture(scope="module")
def short_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's weights in a config that promises 32 positions."""
    return write_llama(tmp_path_factory.mktemp("short"), DRAFT_LIMIT)


@pytest.fixture(scope="module")
def alone(target: Path) -> TargetAlone:
    return TargetAlone(target)


def write_llama(directory: Path, max_position_embeddings: int) -> Path:
    return write_checkpoint(
        directory,
        num_layers=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=max_position_embeddings,
        seed=1,
    )


def write_gpt2(directory: Path, max_position_embeddings: int) -> Path:
    return write_checkpoint(
        directory,
        "gpt2",
        num_layers=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=max_position_embeddings,
        seed=1,
        tie_word_embeddings=True,
    )


def assert_crosses_the_limit(engine: Engine, alone: TargetAlone) -> None:
    prompts = [random_prompt(length, seed=length) for length in PROMPT_LENGTHS]
    for result in engine.generate(prompts, greedy(20)):
        alone.assert_same(result, 20)
        assert result.finish_reason == "length"


@pytest.mark.parametrize(("num_steps", "topk"), [(1, 1), (5, 1), (3, 2)])
def test_a_rotary_draft_goes_on_beyond_its_config(
    target: Path, short_draft: Path, alone: TargetAlone, num_steps: int, topk: int
) -> None:
    with open_tiny(target, standalone(short_draft, num_steps=num_steps, topk=topk)) as engine:
        assert engine.scheduler.max_request_len == TARGET_LIMIT
        assert_crosses_the_limit(engine, alone)
        (result,) = engine.generate([random_prompt(60, seed=60)], greedy(1 + 4 * (num_steps + 1)))
    if topk == 1:
        # Its positions are computed: behind the limit it drafts as well as before.
        assert result.spec is not None
        assert result.spec.accept_length == num_steps + 1


def test_the_context_that_users_see_is_the_targets(target: Path, short_draft: Path) -> None:
    with open_tiny(target) as engine:
        before = engine.status()["server_args"]
    with open_tiny(target, standalone(short_draft, num_steps=3)) as engine:
        after = engine.status()["server_args"]
        assert engine.scheduler.max_request_len == TARGET_LIMIT
        too_long, longest = engine.generate(
            [random_prompt(TARGET_LIMIT, seed=1), random_prompt(TARGET_LIMIT - 1, seed=1)]
        )
    assert before["context_length"] == after["context_length"]
    assert too_long.error is not None
    assert str(TARGET_LIMIT) in too_long.error
    assert (longest.error, longest.completion_tokens) == (None, 1)


@pytest.mark.parametrize("name", ["chain", "tree", "ngram"])
def test_a_text_may_fill_the_context_to_the_last_token(
    target: Path, short_draft: Path, alone: TargetAlone, name: str
) -> None:
    settings = {
        "chain": standalone(short_draft, num_steps=8),
        "tree": standalone(short_draft, num_steps=5, topk=2),
        "ngram": ngram(num_draft_tokens=8),
    }[name]
    prompts = [random_prompt(length, seed=length) for length in (100, 120, 126, 127)]
    with open_tiny(target, settings, page_size=16) as engine:
        free_at_start = free_tokens(engine)
        results = engine.generate(prompts, greedy(1000))
        assert free_tokens(engine) == free_at_start
    for prompt, result in zip(prompts, results, strict=True):
        alone.assert_same(result, TARGET_LIMIT - len(prompt))
        assert result.finish_reason == "length"


def test_a_refused_prompt_disturbs_nobody(tiny: TinyModels, target_alone: TargetAlone) -> None:
    prompts = [random_prompt(5, seed=5), random_prompt(300, seed=6), random_prompt(9, seed=9)]
    with open_tiny(tiny.target, standalone(tiny.noisy, num_steps=3)) as engine:
        free_at_start = free_tokens(engine)
        first, refused, last = engine.generate(prompts, greedy(20))
        assert refused.error is not None
        assert "300 tokens" in refused.error
        assert (refused.text, refused.token_ids, refused.finish_reason) == ("", (), None)
        assert refused.to_json()["error"]["type"] == "invalid_request"
        with pytest.raises(ValueError, match="300 tokens"):
            next(engine.stream(prompts[1]))
        (again,) = engine.generate([prompts[2]], greedy(20))
        assert free_tokens(engine) == free_at_start
    for result in (first, last, again):
        target_alone.assert_same(result, 20)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([5, VOCAB_SIZE], f"0 to {VOCAB_SIZE - 1}"), ([-1], "token id -1")],
)
def test_a_prompt_that_means_nothing_is_refused(
    tiny: TinyModels, prompt: list[int], message: str
) -> None:
    with open_tiny(tiny.target, skip_tokenizer_init=False) as engine:
        refused, other = engine.generate([prompt, [7, 8]], greedy(3))
    assert refused.error is not None
    assert message in refused.error
    assert other.completion_tokens == 3


def test_a_cache_smaller_than_the_context_says_what_fits(
    target: Path, short_draft: Path, alone: TargetAlone
) -> None:
    settings = standalone(short_draft, num_steps=3)
    with open_tiny(target, settings, max_total_tokens=50) as engine:
        longest = engine.scheduler.max_request_len
        assert 40 < longest <= 50
        fits, refused = engine.generate(
            [random_prompt(20, seed=20), random_prompt(60, seed=60)], greedy(100)
        )
    alone.assert_same(fits, longest - 20)
    assert fits.finish_reason == "length"
    assert refused.error is not None
    assert "KV cache of 50 tokens" in refused.error


@pytest.mark.parametrize(("num_steps", "topk"), [(3, 1), (3, 2)])
def test_a_draft_with_learned_positions_stops_at_its_last_one(
    target: Path, alone: TargetAlone, tmp_path: Path, num_steps: int, topk: int
) -> None:
    draft = write_gpt2(tmp_path / "gpt2", DRAFT_LIMIT)
    settings = standalone(draft, num_steps=num_steps, topk=topk)
    with open_tiny(target, settings) as engine:
        assert engine.scheduler.max_request_len == TARGET_LIMIT
        assert_crosses_the_limit(engine, alone)
        short, long = engine.generate(
            [random_prompt(5, seed=5), random_prompt(60, seed=60)], greedy(40)
        )
    assert short.spec is not None
    assert long.spec is not None
    assert 0 < short.spec.verify_steps < 39, "it drafts before its limit and not behind it"
    assert long.spec.proposed == 0


@pytest.mark.parametrize("name", ["none", "ngram", "rotary chain", "rotary tree"])
def test_a_target_with_learned_positions_fills_its_context(
    tmp_path: Path, short_draft: Path, name: str
) -> None:
    # Windows of the last steps reach behind the last position of its table.
    target = write_gpt2(tmp_path / "gpt2", DRAFT_LIMIT)
    settings = {
        "none": {},
        "ngram": ngram(num_draft_tokens=8),
        "rotary chain": standalone(short_draft, num_steps=8),
        "rotary tree": standalone(short_draft, num_steps=5, topk=2),
    }[name]
    prompts = [random_prompt(length, seed=length) for length in (4, 25, 30, 31)]
    with open_tiny(target, settings) as engine:
        results = engine.generate(prompts, greedy(100))
    alone = TargetAlone(target)
    for prompt, result in zip(prompts, results, strict=True):
        alone.assert_same(result, DRAFT_LIMIT - len(prompt))
        assert result.finish_reason == "length"


def test_a_learned_draft_of_the_same_weights_is_accepted_up_to_its_limit(tmp_path: Path) -> None:
    # GPT-2 both times, the draft with the first rows of the target's position table.
    target = write_gpt2(tmp_path / "target", TARGET_LIMIT)
    settings = standalone(target, num_steps=3)
    with open_tiny(target, settings) as engine:
        results = engine.generate(
            [random_prompt(length, seed=length) for length in (5, 30, 100)], greedy(100)
        )
    alone = TargetAlone(target)
    for result, num_tokens in zip(results, (100, 98, 28), strict=True):
        alone.assert_same(result, num_tokens)
        assert result.finish_reason == "length"
    assert accepted(results) > 100
