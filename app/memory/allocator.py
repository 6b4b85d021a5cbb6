"""Hands out pages of slots; target and drafts share one slot space."""

from __future__ import annotations

from collections.abc import Iterable


class PagedAllocator:
    """Free pages as a stack. Page 0 is kept back: padded rows write there.

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
        # Descending, so that pages are handed out in ascending order and rows become runs.
        self._free_pages = list(range(num_pages - 1, 0, -1))

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
        pages = [self._free_pages.pop() for _ in range(num_pages)]
        return [p * self.page_size + i for p in pages for i in range(self.page_size)]

    def free(self, slots: Iterable[int]) -> None:
        """Give whole pages back; `slots` are all slots of those pages, in table order."""
        pages = [slot // self.page_size for slot in list(slots)[:: self.page_size]]
        assert not set(pages) & set(self._free_pages), "a page was freed twice"
        # Sorted so that the next request gets ascending pages again.
        self._free_pages = sorted([*self._free_pages, *pages], reverse=True)
