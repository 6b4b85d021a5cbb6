from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.speculative.ngram_nodes import NONE, ROOT
from app.speculative.ngram_trie import NgramTrie


def make_trie(
    max_depth: int = 4,
    capacity: int = 10_000,
    min_breadth: int = 1,
    max_breadth: int = 4,
    match_type: str = "BFS",
) -> NgramTrie:
    assert match_type in ("BFS", "PROB")
    return NgramTrie(
        max_depth=max_depth,
        capacity=capacity,
        min_breadth=min_breadth,
        max_breadth=max_breadth,
        match_type=match_type,  # type: ignore[arg-type]
    )


def walk(trie: NgramTrie, path: Sequence[int]) -> int:
    node = ROOT
    for token in path:
        node = trie.nodes.child(node, token)
        if node == NONE:
            break
    return node


def all_paths(trie: NgramTrie) -> dict[tuple[int, ...], int]:
    """Every n-gram of the trie with its frequency."""
    found: dict[tuple[int, ...], int] = {}
    stack: list[tuple[int, tuple[int, ...]]] = [(ROOT, ())]
    while stack:
        node, path = stack.pop()
        for child in trie.nodes.recent_children(node):
            below = (*path, trie.nodes.token[child])
            found[below] = trie.nodes.freq[child]
            stack.append((child, below))
    return found


texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, min_size=1, max_size=3), st.integers(2, 5), st.data())
def test_frequencies_count_every_occurrence_once(
    requests: list[list[int]], max_depth: int, data: st.DataObject
) -> None:
    trie = make_trie(max_depth=max_depth)
    expected: Counter[tuple[int, ...]] = Counter()
    for request_id, text in enumerate(requests):
        # In pieces, as a request grows; asking twice teaches nothing new.
        cut = data.draw(st.integers(1, len(text)))
        for end in (cut, cut, len(text)):
            trie.insert(request_id, text[:end])
        for start in range(len(text)):
            for end in range(start + 1, min(start + max_depth, len(text)) + 1):
                expected[tuple(text[start:end])] += 1
    assert all_paths(trie) == dict(expected)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 4), min_size=1, max_size=4)),
        max_size=25,
    ),
    st.integers(2, 4),
    st.integers(0, 12),
    st.integers(0, 30),
)
def test_incremental_match_equals_rebuilding_under_eviction_and_reset(
    growth: list[tuple[int, list[int]]], max_depth: int, extra_capacity: int, reset_at: int
) -> None:
    trie = make_trie(max_depth=max_depth, capacity=max_depth + extra_capacity)
    written: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for moment, (request_id, tokens) in enumerate(growth):
        if moment == reset_at:
            trie.reset()
        text = written[request_id]
        text += tokens
        trie.insert(request_id, text)
        assert len(trie.nodes) == len(all_paths(trie)) <= trie.nodes.capacity
        for other, other_text in written.items():
            if not other_text:
                continue
            expected = []
            for length in range(min(max_depth, len(other_text)), 0, -1):
                node = walk(trie, other_text[-length:])
                if node != NONE and not trie.nodes.is_leaf(node):
                    expected.append((node, length))
            assert trie.match(other) == expected


def test_least_recent_leaves_are_evicted_first() -> None:
    trie = make_trie(max_depth=2, capacity=4)
    trie.insert(0, [1, 2])
    trie.insert(1, [3])
    assert set(all_paths(trie)) == {(1,), (2,), (1, 2), (3,)}
    # Two nodes are needed. The oldest is 1; what hangs on it goes before it.
    trie.insert(1, [3, 4])
    assert set(all_paths(trie)) == {(2,), (3,), (4,), (3, 4)}
    # Touched nodes are spared: 2 occurs again, so 3's continuation is the oldest leaf.
    trie.insert(2, [2])
    trie.insert(3, [5])
    assert set(all_paths(trie)) == {(2,), (3,), (4,), (5,)}


def test_a_request_whose_context_was_evicted_goes_on() -> None:
    trie = make_trie(max_depth=3, capacity=6)
    trie.insert(0, [1, 2])
    trie.insert(1, [7, 8, 9])
    assert walk(trie, [1, 2]) == NONE
    tokens, parents = trie.propose(0, [1, 2, 5], 4)
    assert (tokens, parents) == ([5], [-1])
    # The evicted row is in use again: the old anchor must not be taken for it.
    assert all(path[-1] == 5 for path in all_paths(trie) if 5 in path)


def test_reset_forgets_and_learning_goes_on() -> None:
    trie = make_trie()
    text = [1, 2, 1]
    assert trie.propose(0, text, 4) == ([1, 2, 1], [-1, 0, 1])
    trie.reset()
    assert trie.epoch == 1
    assert trie.propose(0, text, 4) == ([1], [-1])
    # What came before the reset is not learned again; what comes after is.
    text += [2, 1]
    trie.propose(0, text, 4)
    assert set(all_paths(trie)) == {(2,), (1,), (2, 1)}
    assert trie.propose(0, [*text, 2], 3) == ([2, 1, 2], [-1, 0, 1])


def test_erase_forgets_the_place_but_not_the_text() -> None:
    trie = make_trie()
    trie.insert(0, [1, 2, 3])
    trie.erase(0)
    trie.erase(0)
    assert walk(trie, [1, 2, 3]) != NONE
    # A new request of the same number starts anew, and profits.
    assert trie.propose(0, [1], 3) == ([1, 2, 3], [-1, 0, 1])


def test_a_shorter_text_under_a_known_number_is_a_new_request() -> None:
    trie = make_trie()
    trie.insert(0, [1, 2, 3])
    trie.insert(0, [4])
    assert walk(trie, [3, 4]) == NONE
    assert walk(trie, [4]) != NONE


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_depth": 1}, "speculative_ngram_max_trie_depth is 1"),
        ({"capacity": 3}, "speculative_ngram_capacity is 3"),
        ({"min_breadth": 5}, "speculative_ngram_min_bfs_breadth is 5"),
        ({"min_breadth": 0}, "speculative_ngram_min_bfs_breadth is 0"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make_trie(**changes)  # type: ignore[arg-type]
