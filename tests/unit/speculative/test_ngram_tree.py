"""Trees worked out by hand."""

from __future__ import annotations

from typing import Literal

import pytest

from app.speculative.ngram_trie import NgramTrie

MatchType = Literal["BFS", "PROB"]


def make_trie(
    match_type: MatchType, *, max_depth: int, min_breadth: int, max_breadth: int
) -> NgramTrie:
    return NgramTrie(
        max_depth=max_depth,
        capacity=1000,
        min_breadth=min_breadth,
        max_breadth=max_breadth,
        match_type=match_type,
    )


def test_bfs_merges_anchors_longest_context_first() -> None:
    trie = make_trie("BFS", max_depth=4, min_breadth=2, max_breadth=2)
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    # Behind (1, 2): 4, more recently than 3; behind (1, 2, 4) and (1, 2, 3): 1. The shorter context
    # (2) knows one token more, 4 1 2 and 3 1 2, which hangs on the same nodes.
    assert trie.propose(0, text, 12) == ([2, 4, 3, 1, 1, 2, 2], [-1, 0, 0, 1, 2, 3, 4])
    assert trie.propose(0, text, 4) == ([2, 4, 3, 1], [-1, 0, 0, 1])
    assert trie.propose(0, text, 2) == ([2, 4], [-1, 0])
    assert trie.propose(0, text, 1) == ([2], [-1])


def test_bfs_breadth_narrows_with_match_length_and_depth() -> None:
    trie = make_trie("BFS", max_depth=4, min_breadth=1, max_breadth=4)
    # 0 is followed by 1, 2, 3, 4 in turn; before 4 stands 9.
    trie.insert(0, [0, 1, 5, 0, 2, 5, 0, 3, 5, 9, 0, 4])
    # One matched token: (4 - 1 - 1) * 1 + 1 = 3 continuations, then 2, then 1.
    assert trie.propose(1, [0], 64)[0][:4] == [0, 4, 3, 2]
    # (9, 0) starts with 2, of which one is known; the rest comes from (0).
    assert trie.propose(2, [9, 0], 64)[0][:4] == [0, 4, 3, 2]
    # One level down there are 2 of the three that are known.
    trie = make_trie("BFS", max_depth=4, min_breadth=1, max_breadth=4)
    trie.insert(0, [0, 1, 7, 0, 1, 8, 0, 1, 9, 5])
    assert trie.propose(1, [0], 64) == ([0, 1, 9, 8, 5, 0], [-1, 0, 1, 1, 2, 3])


def test_recency_against_frequency() -> None:
    text = [1, 2, 1, 2, 1, 2, 1, 3, 1]
    recent = make_trie("BFS", max_depth=2, min_breadth=1, max_breadth=4)
    assert recent.propose(0, text, 3) == ([1, 3], [-1, 0])
    frequent = make_trie("PROB", max_depth=2, min_breadth=1, max_breadth=4)
    assert frequent.propose(0, text, 2) == ([1, 2], [-1, 0])
    assert frequent.propose(1, [1], 9) == ([1, 2, 3], [-1, 0, 0])


def test_prob_expands_the_most_probable_path_first() -> None:
    # Behind 1: 2 three times of four, 3 once. Behind (1, 2): 5 twice, 6 once.
    trie = make_trie("PROB", max_depth=3, min_breadth=1, max_breadth=4)
    trie.insert(0, [1, 2, 5, 0, 1, 2, 5, 0, 1, 2, 6, 0, 1, 3])
    # 2: .75, then its child 5: .5, then 3 and 6: .25 each, 3 found first.
    assert trie.propose(1, [1], 2) == ([1, 2], [-1, 0])
    assert trie.propose(1, [1], 3) == ([1, 2, 5], [-1, 0, 1])
    assert trie.propose(1, [1], 4) == ([1, 2, 3, 5], [-1, 0, 0, 1])
    assert trie.propose(1, [1], 9) == ([1, 2, 3, 5, 6], [-1, 0, 0, 1, 1])


def test_prob_takes_the_most_frequent_children_only() -> None:
    trie = make_trie("PROB", max_depth=2, min_breadth=1, max_breadth=2)
    trie.insert(0, [0, 1, 0, 1, 0, 1, 0, 2, 0, 3, 0, 3, 0, 4])
    # 1 three times, 3 twice, 2 and 4 once each.
    assert trie.propose(1, [0], 9) == ([0, 1, 3], [-1, 0, 0])


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_no_match_proposes_nothing(match_type: MatchType) -> None:
    trie = make_trie(match_type, max_depth=4, min_breadth=1, max_breadth=4)
    assert trie.propose(0, [1, 2, 3], 8) == ([3], [-1])


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_a_repetition_is_proposed_as_a_chain(match_type: MatchType) -> None:
    trie = make_trie(match_type, max_depth=5, min_breadth=1, max_breadth=1)
    text = [1, 2, 3, 4, 5, 6] * 2
    tokens, parents = trie.propose(0, text, 5)
    assert tokens == [6, 1, 2, 3, 4]
    assert parents == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_proposals_never_depend_on_other_requests_order_of_asking(match_type: MatchType) -> None:
    def run(order: list[int]) -> dict[int, tuple[list[int], list[int]]]:
        trie = make_trie(match_type, max_depth=4, min_breadth=1, max_breadth=4)
        texts = {0: [1, 2, 3, 1, 2], 1: [2, 3, 4, 2, 3], 2: [3, 1, 2, 3]}
        for request_id, text in texts.items():
            trie.insert(request_id, text)
        return {i: trie.propose(i, texts[i], 8) for i in order}

    assert run([0, 1, 2]) == run([2, 0, 1])
