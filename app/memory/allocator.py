"""Hands out pages of slots; target and drafts share one slot space."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class PagedAllocator:
    """Hands out the lowest free pages, so that rows become runs. Page 0 is kept back: padded rows
    write there.

    A page is `page_size` consecutive slots: page p holds slots `p * page_size ..`.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 2:
            raise ValueError(
                f"the KV cache holds {num_pages} page(s) of {page_size} token(s): "
                "raise kv_cache_memory or max_total_tokens"
            )
        self.page_size = page_size
        self.num_pages = num_pages
        self._free_pages = list(range(1, num_pages))  # a heap
        self._is_free = bytearray([0] + [1] * (num_pages - 1))

    @property
    def num_free_slots(self) -> int:
        return len(self._free_pages) * self.page_size

    @property
    def capacity(self) -> int:
        return (self.num_pages - 1) * self.page_size

    def alloc(self, num_pages: int) -> list[int] | None:
        """The slots of `num_pages` pages, or None when there are not enough."""
        if num_pages > len(self._free_pages):
            return None
        pages = [heapq.heappop(self._free_pages) for _ in range(num_pages)]
        for page in pages:
            self._is_free[page] = 0
        return [p * self.page_size + i for p in pages for i in range(self.page_size)]

    def free(self, slots: Iterable[int]) -> None:
        """Give whole pages back; `slots` are all slots of those pages, in table order."""
        for slot in list(slots)[:: self.page_size]:
            page = slot // self.page_size
            assert not self._is_free[page], "a page was freed twice"
            self._is_free[page] = 1
            heapq.heappush(self._free_pages, page)
