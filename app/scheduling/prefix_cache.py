"""What happens to the slots of tokens that a request leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from app.memory.allocator import PagedAllocator


class BasePrefixCache(ABC):
    """Owns slots between requests. The scheduler asks it before it prefills and hands it every
    slot that a request gives up."""

    @abstractmethod
    def match(self, token_ids: Sequence[int]) -> list[int]:
        """Slots of the longest cached prefix of `token_ids`, whole pages, always leaving at least
        one token to run."""
        ...

    @abstractmethod
    def release(self, token_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Take `slots`, of which the first `len(token_ids)` hold exact keys and values for
        `token_ids`; keep or free them."""
        ...


class NoPrefixCache(BasePrefixCache):
    """Keeps nothing: every slot goes straight back to the allocator."""

    def __init__(self, allocator: PagedAllocator) -> None:
        self._allocator = allocator

    def match(self, token_ids: Sequence[int]) -> list[int]:
        return []

    def release(self, token_ids: Sequence[int], slots: Sequence[int]) -> None:
        self._allocator.free(slots)
