"""The trie behind NGRAM: every n-gram that requests have shown, and where each request stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.speculative.ngram_nodes import NONE, ROOT, TrieNodes
from app.speculative.ngram_tree import Anchor, build_bfs_tree, build_prob_tree


@dataclass(slots=True)
class _Stream:
    """Where one request's text ends in the trie.

    `anchors[d]` is the (node, version) that the last d tokens lead to from the root, node NONE when
    the trie has no such path; `tail` holds the last `max_depth` tokens.
    """

    epoch: int
    num_seen: int = 0
    tail: list[int] = field(default_factory=list)
    anchors: list[tuple[int, int]] = field(default_factory=lambda: [(ROOT, 0)])


class NgramTrie:
    """Proposes continuations of what requests end with, from what all requests have shown.

    The path of an n-gram of up to `max_depth` tokens is a node, its `freq` the number of times the
    n-gram occurred. A new token ends at most `max_depth` n-grams, one a context length, and each is
    a child of the node that the request's previous tokens led to. So inserting costs `max_depth`
    steps a token, counts every occurrence once, and gives the next match at the same time.

    Deterministic and synchronous: a step costs microseconds, so a background thread would save
    nothing and let proposals depend on timing.
    """

    def __init__(
        self,
        *,
        max_depth: int,
        capacity: int,
        min_breadth: int,
        max_breadth: int,
        match_type: Literal["BFS", "PROB"],
    ) -> None:
        if max_depth < 2:
            raise ValueError(
                f"speculative_ngram_max_trie_depth is {max_depth}: "
                "it must be at least 2, a context and its continuation"
            )
        if capacity < max_depth:
            raise ValueError(
                f"speculative_ngram_capacity is {capacity}: it must be at least "
                f"speculative_ngram_max_trie_depth ({max_depth}), what one token may add"
            )
        if not 0 < min_breadth <= max_breadth:
            raise ValueError(
                f"speculative_ngram_min_bfs_breadth is {min_breadth} and "
                f"speculative_ngram_max_bfs_breadth is {max_breadth}: "
                "need 0 < min_bfs_breadth <= max_bfs_breadth"
            )
        self.max_depth = max_depth
        self.epoch = 0
        self.nodes = TrieNodes(capacity)
        self._min_breadth = min_breadth
        self._max_breadth = max_breadth
        self._match_type = match_type
        self._streams: dict[int, _Stream] = {}

    def insert(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Learn what is new in `token_ids`, the whole text of a request so far (prompt and output).

        May be called at any time, for instance on the prompt; `propose` calls it itself.
        """
        stream = self._streams.get(request_id)
        if stream is None or stream.num_seen > len(token_ids):
            stream = self._streams[request_id] = _Stream(self.epoch)
        self._refresh(stream)
        for token in token_ids[stream.num_seen :]:
            stream.anchors = self._extend(stream.anchors, token)
        if stream.num_seen < len(token_ids):
            stream.num_seen = len(token_ids)
            stream.tail = list(token_ids[-self.max_depth :])
            self._refresh(stream)

    def propose(
        self, request_id: int, token_ids: Sequence[int], num_draft_tokens: int
    ) -> tuple[list[int], list[int]]:
        """Insert what is new in the whole text `token_ids`, then continue its end.

        Returns tokens and parents of a tree in breadth-first order: node 0 is the last token of the
        text (parent -1), then up to `num_draft_tokens - 1` proposals. Nothing is made up to fill
        the tree; with no match there is the root alone.
        """
        self.insert(request_id, token_ids)
        anchors = self.match(request_id)
        root_token, budget = token_ids[-1], num_draft_tokens - 1
        if budget < 1 or not anchors:
            return [root_token], [-1]
        if self._match_type == "PROB":
            return build_prob_tree(
                self.nodes,
                anchors,
                root_token=root_token,
                budget=budget,
                max_breadth=self._max_breadth,
            )
        return build_bfs_tree(
            self.nodes,
            anchors,
            root_token=root_token,
            budget=budget,
            max_depth=self.max_depth,
            min_breadth=self._min_breadth,
            max_breadth=self._max_breadth,
        )

    def match(self, request_id: int) -> list[Anchor]:
        """Nodes that the end of a request's text leads to and that have continuations, with the
        number of matched tokens, longest first."""
        stream = self._streams[request_id]
        self._refresh(stream)
        matches = [(node, length) for length, (node, _) in enumerate(stream.anchors)]
        return [
            (node, length)
            for node, length in reversed(matches[1:])
            if node != NONE and not self.nodes.is_leaf(node)
        ]

    def erase(self, request_id: int) -> None:
        """Forget where a request stands; what it taught stays."""
        self._streams.pop(request_id, None)

    def reset(self) -> None:
        """Forget all n-grams. Running requests go on from here."""
        self.nodes = TrieNodes(self.nodes.capacity)
        self.epoch += 1

    def _extend(self, anchors: list[tuple[int, int]], token: int) -> list[tuple[int, int]]:
        """Insert `token` behind every context that `anchors` stands for; the anchors behind it."""
        nodes = self.nodes
        versions = nodes.version
        parents = anchors[: self.max_depth]
        if len(nodes) + len(parents) > nodes.capacity:
            self._make_room(parents, token)
        extended = [(ROOT, 0)]
        for node, version in parents:
            if node == NONE or versions[node] != version:
                extended.append((NONE, 0))
                continue
            child = nodes.child(node, token)
            if child == NONE:
                child = nodes.add(node, token)
            else:
                nodes.touch(child)
            extended.append((child, versions[child]))
        return extended

    def _make_room(self, parents: list[tuple[int, int]], token: int) -> None:
        """Evict until every context can get its child.

        All evictions come before the first new node: evicting in between could take a node that
        this token has just touched.
        """
        nodes = self.nodes
        while True:
            num_missing = sum(
                node != NONE and nodes.version[node] == version and nodes.child(node, token) == NONE
                for node, version in parents
            )
            excess = len(nodes) + num_missing - nodes.capacity
            if excess <= 0:
                return
            # May take a child that was there: hence the recount.
            for _ in range(excess):
                nodes.evict()

    def _refresh(self, stream: _Stream) -> None:
        """Find all anchors anew when some are missing, evicted or from before a reset."""
        versions = self.nodes.version
        if stream.epoch == self.epoch and all(
            node != NONE and versions[node] == version for node, version in stream.anchors
        ):
            return
        stream.epoch = self.epoch
        stream.anchors = [(ROOT, 0)]
        for length in range(1, len(stream.tail) + 1):
            node = ROOT
            for token in stream.tail[-length:]:
                node = self.nodes.child(node, token)
                if node == NONE:
                    break
            stream.anchors.append((node, versions[node] if node != NONE else 0))
