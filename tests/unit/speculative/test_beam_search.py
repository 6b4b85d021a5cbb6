from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.speculative.beam_search import BeamSearch
from app.speculative.tree import build_tree


def test_worked_example() -> None:
    beams = BeamSearch(topk=2)
    tokens = beams.first(torch.tensor([[0.6, 0.3]]), torch.tensor([[10, 11]]))
    assert tokens.tolist() == [[10, 11]]
    assert beams.mask().tolist() == [[[True, True, False], [True, False, True]]]
    tokens, parent_beam = beams.advance(
        torch.tensor([[[0.7, 0.2], [0.9, 0.05]]]), torch.tensor([[[20, 21], [22, 23]]])
    )
    assert (tokens.tolist(), parent_beam.tolist()) == ([[20, 22]], [[0, 1]])
    assert beams.mask().int().tolist() == [[[1, 1, 0, 1, 0], [1, 0, 1, 0, 1]]]
    beams.advance(torch.tensor([[[0.5, 0.4], [0.8, 0.1]]]), torch.tensor([[[30, 31], [32, 33]]]))
    chosen = beams.finish(num_draft_tokens=6)
    assert chosen.parent_list.tolist() == [[-1, 0, 1, 2, 4]]
    assert chosen.selected_index.tolist() == [[0, 1, 2, 4, 8]]
    assert chosen.draft_tokens.tolist() == [[10, 11, 20, 22, 32]]


# Powers of two multiply exactly, so that brute force and tensors agree on every tie.
PROBABILITIES = (1.0, 1.0, 0.5, 0.25, 0.0)
Path = tuple[int, ...]


@settings(deadline=None, max_examples=60)
@given(
    topk=st.integers(1, 3),
    num_steps=st.integers(1, 4),
    data=st.data(),
    seed=st.integers(0, 10_000),
)
def test_tree_equals_brute_force(topk: int, num_steps: int, data: st.DataObject, seed: int) -> None:
    num_candidates = topk + (num_steps - 1) * topk**2
    num_selected = data.draw(st.integers(1, num_candidates))
    chooser = random.Random(seed)

    # Paths of tokens; every candidate gets a token of its own, so that a path names a node.
    def expansions(path: Path, count: int) -> list[tuple[float, Path]]:
        return [
            (chooser.choice(PROBABILITIES), (*path, chooser.randrange(10**9))) for _ in range(count)
        ]

    steps = [expansions((), topk)]
    candidates = list(steps[0])
    survivors = list(steps[0])
    search = BeamSearch(topk)
    search.first(
        torch.tensor([[score for score, _ in survivors]]),
        torch.tensor([[path[-1] for _, path in survivors]]),
    )
    history = [[path for _, path in survivors]]
    for _ in range(1, num_steps):
        grown = [expansions(path, topk) for _, path in survivors]
        tokens, parent_beam = search.advance(
            torch.tensor([[[score for score, _ in row] for row in grown]]),
            torch.tensor([[[path[-1] for _, path in row] for row in grown]]),
        )
        step = [
            (survivors[beam][0] * score, path)
            for beam, row in enumerate(grown)
            for score, path in row
        ]
        candidates += step
        before = [path for _, path in survivors]
        survivors = sorted(step, key=lambda item: -item[0])[:topk]
        history.append([path for _, path in survivors])
        assert tokens.tolist() == [[path[-1] for _, path in survivors]]
        assert parent_beam.tolist() == [[before.index(path[:-1]) for _, path in survivors]]
        # The window: the root, then the beams of every forward so far.
        window = [()] + [path for beams in history for path in beams]
        for (_, path), row in zip(survivors, search.mask()[0].tolist(), strict=True):
            seen = {place for place, visible in enumerate(row) if visible}
            prefixes = {path[:length] for length in range(len(path) + 1)}
            assert seen == {place for place, other in enumerate(window) if other in prefixes}

    order = sorted(range(num_candidates), key=lambda i: -candidates[i][0])[:num_selected]
    expected = [()] + [candidates[i][1] for i in sorted(order)]
    chosen = search.finish(num_selected + 1)
    tree = build_tree(
        torch.tensor([-5]), chosen.parent_list, chosen.selected_index, chosen.draft_tokens, topk
    )
    assert tree.tokens[0, 1:].tolist() == [path[-1] for path in expected[1:]]
    assert tree.parents.tolist() == [[-1] + [expected.index(path[:-1]) for path in expected[1:]]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.5])
def test_a_broken_draft_still_gives_a_tree(bad: float) -> None:
    beams = BeamSearch(topk=2)
    beams.first(torch.tensor([[0.5, 0.5]]), torch.tensor([[1, 2]]))
    beams.advance(torch.full((1, 2, 2), bad), torch.tensor([[[3, 4], [5, 6]]]))
    chosen = beams.finish(num_draft_tokens=4)
    tree = build_tree(
        torch.tensor([0]), chosen.parent_list, chosen.selected_index, chosen.draft_tokens, 2
    )
    parents = tree.parents[0].tolist()
    assert all(0 <= parent < node for node, parent in enumerate(parents) if node)


def test_rows_of_a_batch_are_independent() -> None:
    torch.manual_seed(0)
    first = torch.rand(3, 2), torch.randint(99, (3, 2))
    second = torch.rand(3, 2, 2), torch.randint(99, (3, 2, 2))
    together = BeamSearch(2)
    together.first(*first)
    together.advance(*second)
    for row in range(3):
        alone = BeamSearch(2)
        alone.first(first[0][row : row + 1], first[1][row : row + 1])
        alone.advance(second[0][row : row + 1], second[1][row : row + 1])
        pairs = zip(together.finish(5), alone.finish(5), strict=True)
        assert all(torch.equal(batch[row : row + 1], single) for batch, single in pairs)
