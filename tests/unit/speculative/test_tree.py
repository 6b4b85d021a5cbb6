from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.speculative.tree import DraftTree, build_chain, build_tree, tree_from_parents


@st.composite
def parent_lists(draw: st.DrawFn) -> list[int]:
    """Parents of a tree, some of its last nodes fillers."""
    num_real = draw(st.integers(1, 10))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, num_real)]
    return parents + [-1] * draw(st.integers(0, 3))


def ancestors(parents: list[int], node: int) -> set[int]:
    path = set()
    while node >= 0:
        path.add(node)
        node = parents[node]
    return path


def test_worked_example() -> None:
    tree = build_tree(
        bonus=torch.tensor([7]),
        parent_list=torch.tensor([[-1, 0, 1, 2, 4]]),
        selected_index=torch.tensor([[0, 1, 2, 4, 8]]),
        draft_tokens=torch.tensor([[10, 11, 20, 22, 32]]),
        topk=2,
    )
    assert tree.tokens.tolist() == [[7, 10, 11, 20, 22, 32]]
    assert tree.parents.tolist() == [[-1, 0, 0, 1, 2, 4]]
    assert tree.next_token.tolist() == [[1, 3, 4, -1, 5, -1]]
    assert tree.next_sibling.tolist() == [[-1, 2, -1, -1, -1, -1]]
    assert tree.depth.tolist() == [[0, 1, 1, 2, 2, 3]]
    rows = ["".join(str(int(seen)) for seen in row) for row in tree.mask[0]]
    assert rows == ["100000", "110000", "101000", "110100", "101010", "101011"]
    assert (tree.num_nodes, tree.max_depth, tree.is_chain) == (6, 3, False)


@settings(deadline=None, max_examples=60)
@given(parent_lists())
def test_links_and_mask_equal_brute_force(parents: list[int]) -> None:
    num_nodes = len(parents)
    tree = tree_from_parents(torch.zeros(1, num_nodes, dtype=torch.int64), torch.tensor([parents]))
    for node in range(num_nodes):
        path = ancestors(parents, node)
        assert {i for i, seen in enumerate(tree.mask[0, node].tolist()) if seen} == path
        assert int(tree.depth[0, node]) == len(path) - 1
        children = [other for other in range(1, num_nodes) if parents[other] == node]
        assert int(tree.next_token[0, node]) == (children[0] if children else -1)
        later = [
            other
            for other in range(node + 1, num_nodes)
            if parents[node] >= 0 and parents[other] == parents[node]
        ]
        assert int(tree.next_sibling[0, node]) == (later[0] if later else -1)


def assert_same_tree(left: DraftTree, right: DraftTree) -> None:
    for name in ("tokens", "parents", "next_token", "next_sibling", "depth", "mask"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    assert left.is_chain == right.is_chain
    assert left.max_depth == right.max_depth


def test_a_chain_is_the_tree_of_beams_of_one() -> None:
    bonus = torch.tensor([1, 2])
    drafts = torch.tensor([[3, 4, 5], [6, 7, 8]])
    chain = build_chain(bonus, drafts)
    assert chain.is_chain
    rows = torch.arange(3).expand(2, 3)
    assert_same_tree(chain, build_tree(bonus, rows - 1, rows, drafts, topk=1))
    parents = (torch.arange(4) - 1).expand(2, 4)
    assert_same_tree(chain, tree_from_parents(chain.tokens, parents))


def test_a_root_alone_is_a_chain() -> None:
    tree = tree_from_parents(torch.tensor([[5]]), torch.tensor([[-1]]))
    assert (tree.num_nodes, tree.max_depth, tree.is_chain) == (1, 0, True)
