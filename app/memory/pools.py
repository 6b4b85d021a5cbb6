"""The memory that target and drafts share: one table of slots and one allocator."""

from __future__ import annotations

from dataclasses import dataclass

from app.memory.allocator import PagedAllocator
from app.memory.req_to_token_pool import ReqToTokenPool


@dataclass(frozen=True, slots=True)
class MemoryPools:
    """A position of a request has one slot id, valid in the KV pools of target and drafts."""

    req_to_token_pool: ReqToTokenPool
    allocator: PagedAllocator

    @property
    def num_slots(self) -> int:
        """Rows of a KV pool, the padding page included."""
        return self.allocator.num_pages * self.allocator.page_size
