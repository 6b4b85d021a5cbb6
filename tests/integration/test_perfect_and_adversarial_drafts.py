"""A draft that is always right is accepted whole; one that is always wrong costs only time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engines import (
    TinyModels,
    free_tokens,
    greedy,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone
from tests.integration.rewriting import HEAD, Tensors, rewrite

PROMPTS = [random_prompt(length, seed=length) for length in (1, 7, 18)]


@pytest.fixture(scope="module")
def always_wrong(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with its head negated: its favourite is what the target likes least."""

    def negate_head(tensors: Tensors) -> None:
        tensors[HEAD].neg_()

    return rewrite(tiny.target, tmp_path_factory.mktemp("wrong") / "draft", negate_head)


@pytest.fixture(scope="module")
def sure_target(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with probabilities of nearly one, so that a beam search keeps the greedy path: it
    keeps what is most probable as a whole, which need not begin with the best token."""

    def raise_head(tensors: Tensors) -> None:
        tensors[HEAD].mul_(100.0)

    return rewrite(tiny.target, tmp_path_factory.mktemp("sure") / "target", raise_head)


@pytest.mark.parametrize("num_steps", [1, 2, 5, 8])
def test_a_perfect_chain_is_accepted_whole(
    tiny: TinyModels, target_alone: TargetAlone, num_steps: int
) -> None:
    num_verifies = 4
    # The prefill gives one token, each verify the whole chain and the bonus.
    num_tokens = 1 + num_verifies * (num_steps + 1)
    with open_tiny(tiny.target, standalone(tiny.perfect, num_steps=num_steps)) as engine:
        results = engine.generate(PROMPTS, greedy(num_tokens))
    for result in results:
        target_alone.assert_same(result, num_tokens)
        assert result.spec is not None
        assert result.spec.verify_steps == num_verifies
        assert result.spec.accept_length == num_steps + 1
        assert result.spec.accept_rate == 1.0


@pytest.mark.parametrize(("num_steps", "topk"), [(2, 2), (5, 2), (3, 4), (5, 4)])
def test_a_perfect_tree_is_accepted_to_its_depth(
    sure_target: Path, num_steps: int, topk: int
) -> None:
    num_verifies = 4
    num_tokens = 1 + num_verifies * (num_steps + 1)
    settings = standalone(sure_target, num_steps=num_steps, topk=topk)
    with open_tiny(sure_target, settings) as engine:
        results = engine.generate(PROMPTS, greedy(num_tokens))
    target_alone = TargetAlone(sure_target)
    for result in results:
        target_alone.assert_same(result, num_tokens)
        assert result.spec is not None
        assert result.spec.accept_length == num_steps + 1


def test_a_chain_cut_by_the_budget_counts_what_was_emitted(tiny: TinyModels) -> None:
    # Prefill 1, one whole verify of 6, then 3 of the second one.
    with open_tiny(tiny.target, standalone(tiny.perfect, num_steps=5)) as engine:
        (result,) = engine.generate(PROMPTS[:1], greedy(10))
    assert result.spec is not None
    assert result.completion_tokens == 10
    assert (result.spec.verify_steps, result.spec.emitted) == (2, 9)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("num_steps", "topk"), [(1, 1), (2, 1), (5, 1), (8, 1), (1, 4), (4, 2)])
def test_a_draft_that_is_always_wrong_changes_nothing_and_leaks_nothing(
    tiny: TinyModels,
    target_alone: TargetAlone,
    always_wrong: Path,
    num_steps: int,
    topk: int,
    page_size: int,
) -> None:
    num_tokens = 20
    settings = standalone(always_wrong, num_steps=num_steps, topk=topk)
    with open_tiny(tiny.target, settings, page_size=page_size) as engine:
        free_at_start = free_tokens(engine)
        results = engine.generate(PROMPTS, greedy(num_tokens))
        assert free_tokens(engine) == free_at_start
    for result in results:
        target_alone.assert_same(result, num_tokens)
        assert result.spec is not None
        assert result.spec.accept_length == 1.0
        assert result.spec.proposed > 0
        assert not any(result.from_draft)
