from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.speculative.tree import build_chain, tree_from_parents
from app.speculative.verify import compaction_moves, greedy_accept

FILLER = -1


def test_worked_example() -> None:
    tree = tree_from_parents(
        torch.tensor([[7, 10, 11, 20, 22, 32]]), torch.tensor([[-1, 0, 0, 1, 2, 4]])
    )
    target = torch.tensor([[11, 55, 22, 55, 99, 55]])
    result = greedy_accept(tree, target)
    assert result.accept_index.tolist() == [[0, 2, 4, -1]]
    assert result.num_correct.tolist() == [2]
    assert result.predict.tolist() == [[11, -1, 22, -1, 99, -1]]
    source, destination = compaction_moves(result.accept_index[0])
    assert (source.tolist(), destination.tolist()) == ([2, 4], [1, 2])


def test_nothing_moves_when_the_path_is_in_place() -> None:
    source, _ = compaction_moves(torch.tensor([0, 1, 2, -1]))
    assert source.tolist() == []


def test_chain_accepts_up_to_the_first_difference() -> None:
    # Never, sometimes, always.
    tree = build_chain(torch.tensor([1, 1, 1]), torch.tensor([[2, 3], [2, 3], [2, 3]]))
    target = torch.tensor([[9, 3, 4], [2, 9, 4], [2, 3, 4]])
    result = greedy_accept(tree, target)
    assert result.num_correct.tolist() == [0, 1, 2]
    assert result.accept_index.tolist() == [[0, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert result.predict.tolist() == [[9, -1, -1], [2, 9, -1], [2, 3, 4]]


@st.composite
def walks(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and the target's choices; siblings may repeat a token, rows may be filled."""
    num_real = draw(st.integers(1, 9))
    num_nodes = num_real + draw(st.integers(0, 2))
    few_tokens = st.integers(0, 2)
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, num_real)]
    parents += [FILLER] * (num_nodes - num_real)
    tokens = [draw(few_tokens) for _ in range(num_nodes)]
    return tokens, parents, [draw(few_tokens) for _ in range(num_nodes)]


@settings(deadline=None, max_examples=100)
@given(walks())
def test_walk_equals_brute_force(walk: tuple[list[int], list[int], list[int]]) -> None:
    tokens, parents, target = walk
    path = [0]
    while True:
        children = [n for n in range(1, len(tokens)) if parents[n] == path[-1]]
        matching = [n for n in children if tokens[n] == target[path[-1]]]
        if not matching:
            break
        path.append(matching[0])
    tree = tree_from_parents(torch.tensor([tokens]), torch.tensor([parents]))
    result = greedy_accept(tree, torch.tensor([target]))
    padded = path + [-1] * (tree.max_depth + 1 - len(path))
    assert result.accept_index.tolist() == [padded]
    assert result.num_correct.tolist() == [len(path) - 1]
    expected = [target[node] if node in path else -1 for node in range(len(tokens))]
    assert result.predict.tolist() == [expected]
