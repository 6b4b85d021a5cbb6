"""Storage of the n-gram trie: nodes as rows of integer arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

ROOT = 0
NONE = -1
_TOKEN_BITS = 32


class TrieNodes:
    """Up to `capacity` nodes besides the root, each with its frequency and two recency orders: its
    place among its siblings and its place among all nodes.

    Integer arrays and one dictionary, not an object a node: a million small objects would cost
    hundreds of megabytes and long pauses of the garbage collector. Rows are reused, so `version`
    grows when a node is evicted: whoever keeps a node compares versions.
    """

    __slots__ = (
        "_children",
        "_first_child",
        "_free",
        "_last_child",
        "_newer",
        "_newer_sibling",
        "_newest",
        "_older",
        "_older_sibling",
        "_oldest",
        "_parent",
        "capacity",
        "freq",
        "token",
        "version",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._children: dict[int, int] = {}
        self._free: list[int] = []
        self._newest = self._oldest = NONE
        # Row 0 is the root; it is in no order and is never evicted.
        self.token = array("q", [NONE])
        self.freq = array("q", [0])
        self.version = array("q", [0])
        self._parent = array("i", [NONE])
        self._first_child = array("i", [NONE])
        self._last_child = array("i", [NONE])
        self._newer_sibling = array("i", [NONE])
        self._older_sibling = array("i", [NONE])
        self._newer = array("i", [NONE])
        self._older = array("i", [NONE])

    def __len__(self) -> int:
        """Live nodes without the root."""
        return len(self._children)

    def child(self, node: int, token: int) -> int:
        """The child of `node` that carries `token`, or NONE."""
        return self._children.get(node << _TOKEN_BITS | token, NONE)

    def is_leaf(self, node: int) -> bool:
        return self._first_child[node] == NONE

    def recent_children(self, node: int) -> Iterator[int]:
        """Children, the most recently touched first."""
        child = self._first_child[node]
        while child != NONE:
            yield child
            child = self._older_sibling[child]

    def add(self, parent: int, token: int) -> int:
        """A new child with frequency 1, the most recent in both orders."""
        assert len(self) < self.capacity, "make room first"
        if self._free:
            node = self._free.pop()
            self.token[node] = token
            self.freq[node] = 1
            self._parent[node] = parent
        else:
            node = len(self.token)
            self.token.append(token)
            self.freq.append(1)
            self.version.append(0)
            self._parent.append(parent)
            for links in (
                self._first_child,
                self._last_child,
                self._newer_sibling,
                self._older_sibling,
                self._newer,
                self._older,
            ):
                links.append(NONE)
        self._children[parent << _TOKEN_BITS | token] = node
        self._link_sibling(node, parent)
        self._link(node)
        return node

    def touch(self, node: int) -> None:
        """Count one more occurrence and make the node the most recent in both orders."""
        self.freq[node] += 1
        if self._newer_sibling[node] != NONE:
            parent = self._parent[node]
            self._unlink_sibling(node, parent)
            self._link_sibling(node, parent)
        if self._newer[node] != NONE:
            self._unlink(node)
            self._link(node)

    def evict(self) -> None:
        """Remove the least recent node or, while that has descendants, the leaf that following the
        least recent child from it leads to: what lies below a node goes before the node."""
        node = self._oldest
        assert node != NONE, "nothing to evict"
        while self._last_child[node] != NONE:
            node = self._last_child[node]
        parent = self._parent[node]
        self._unlink_sibling(node, parent)
        self._unlink(node)
        del self._children[parent << _TOKEN_BITS | self.token[node]]
        self.version[node] += 1
        self._free.append(node)

    def _link_sibling(self, node: int, parent: int) -> None:
        first = self._first_child[parent]
        self._older_sibling[node] = first
        self._newer_sibling[node] = NONE
        if first == NONE:
            self._last_child[parent] = node
        else:
            self._newer_sibling[first] = node
        self._first_child[parent] = node

    def _unlink_sibling(self, node: int, parent: int) -> None:
        newer, older = self._newer_sibling[node], self._older_sibling[node]
        if newer == NONE:
            self._first_child[parent] = older
        else:
            self._older_sibling[newer] = older
        if older == NONE:
            self._last_child[parent] = newer
        else:
            self._newer_sibling[older] = newer

    def _link(self, node: int) -> None:
        newest = self._newest
        self._older[node] = newest
        self._newer[node] = NONE
        if newest == NONE:
            self._oldest = node
        else:
            self._newer[newest] = node
        self._newest = node

    def _unlink(self, node: int) -> None:
        newer, older = self._newer[node], self._older[node]
        if newer == NONE:
            self._newest = older
        else:
            self._older[newer] = older
        if older == NONE:
            self._oldest = newer
        else:
            self._newer[older] = newer
