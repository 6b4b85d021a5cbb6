"""Draft trees out of the n-gram trie, by recency or by frequency (algorithms.md section 15.1)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from app.speculative.ngram_nodes import TrieNodes

# A matched context that has continuations: (trie node, number of matched tokens).
Anchor = tuple[int, int]


class _TreeBuilder:
    """A token tree that grows to a budget; equal tokens under one parent are one node."""

    def __init__(self, root_token: int, budget: int) -> None:
        self._budget = budget
        self._tokens = [root_token]
        self._children: list[dict[int, int]] = [{}]

    @property
    def is_full(self) -> bool:
        return len(self._tokens) > self._budget

    def add(self, parent: int, token: int) -> int:
        """The node of `token` under `parent`, made when there is none."""
        siblings = self._children[parent]
        node = siblings.get(token)
        if node is None:
            node = siblings[token] = len(self._tokens)
            self._tokens.append(token)
            self._children.append({})
        return node

    def in_bfs_order(self) -> tuple[list[int], list[int]]:
        """Tokens and parents, level by level, children in the order they were added."""
        order = [0]
        parents = [-1]
        for place, node in enumerate(order):  # grows while it is walked
            children = self._children[node].values()
            order.extend(children)
            parents.extend([place] * len(children))
        return [self._tokens[node] for node in order], parents


def build_bfs_tree(
    nodes: TrieNodes,
    anchors: Sequence[Anchor],
    *,
    root_token: int,
    budget: int,
    max_depth: int,
    min_breadth: int,
    max_breadth: int,
) -> tuple[list[int], list[int]]:
    """Up to `budget` continuations, the most recent first, breadth-first from each anchor in turn.

    Longer matches start narrower, and every level is narrower by the same step: what is known
    better is followed deeper. Returns tokens and parents with the root at 0.
    """
    tree = _TreeBuilder(root_token, budget)
    step = (max_breadth - min_breadth) / (max_depth - 1)
    for anchor, match_len in anchors:
        first_breadth = (max_depth - 1 - match_len) * step + min_breadth
        queue = deque([(anchor, 0, first_breadth)])
        while queue:
            trie_node, tree_node, breadth = queue.popleft()
            num_children = max(1, int(breadth))
            for child, _ in zip(
                nodes.recent_children(trie_node), range(num_children), strict=False
            ):
                if tree.is_full:
                    return tree.in_bfs_order()
                added = tree.add(tree_node, nodes.token[child])
                queue.append((child, added, breadth - step))
    return tree.in_bfs_order()


def build_prob_tree(
    nodes: TrieNodes,
    anchors: Sequence[Anchor],
    *,
    root_token: int,
    budget: int,
    max_breadth: int,
) -> tuple[list[int], list[int]]:
    """Up to `budget` continuations, the most probable first, from each anchor in turn.

    A node's `max_breadth` most frequent children share its probability in proportion to their
    frequencies; among equals the more recent comes first. Returns tokens and parents with the root
    at 0.
    """
    tree = _TreeBuilder(root_token, budget)
    for anchor, _ in anchors:
        # (-probability, order of arrival, trie node, parent in the tree)
        heap: list[tuple[float, int, int, int]] = []
        arrivals = 0
        trie_node, tree_node, probability = anchor, 0, 1.0
        while True:
            children = heapq.nlargest(
                max_breadth, nodes.recent_children(trie_node), key=nodes.freq.__getitem__
            )
            total = sum(nodes.freq[child] for child in children)
            for child in children:
                share = probability * nodes.freq[child] / total
                heapq.heappush(heap, (-share, arrivals, child, tree_node))
                arrivals += 1
            if tree.is_full or not heap:
                break
            negative, _, trie_node, parent = heapq.heappop(heap)
            probability = -negative
            tree_node = tree.add(parent, nodes.token[trie_node])
        if tree.is_full:
            break
    return tree.in_bfs_order()
