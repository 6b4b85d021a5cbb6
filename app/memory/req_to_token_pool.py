"""Which slot holds each position of each running request."""

from __future__ import annotations

import torch


class ReqToTokenPool:
    """`table [num_rows, num_columns]` int64: `table[row, position]` is a slot id.

    Target and drafts share one table. Columns hold the context plus headroom for a verify window.
    """

    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        self.table = torch.zeros((num_rows, num_columns), dtype=torch.int64, device=device)
        self._free_rows = list(range(num_rows - 1, -1, -1))
        # First slot of rows whose slots form one ascending run; None once they do not.
        self._run_start: list[int | None] = [None] * num_rows
        self._num_written = [0] * num_rows

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def num_columns(self) -> int:
        return self.table.shape[1]

    def take_row(self) -> int:
        assert self._free_rows, "the scheduler admits no more requests than there are rows"
        return self._free_rows.pop()

    def free_row(self, row: int) -> None:
        self._free_rows.append(row)
        self.clear(row)

    def clear(self, row: int) -> None:
        """Forget the row's slots (its request was preempted or is gone)."""
        self._run_start[row] = None
        self._num_written[row] = 0

    def append(self, row: int, slots: list[int]) -> None:
        """Write `slots` behind the row's present ones."""
        start = self._num_written[row]
        assert start + len(slots) <= self.num_columns, "slots beyond the table's headroom"
        if not slots:
            return
        if start == 0:
            self._run_start[row] = slots[0]
        first = self._run_start[row]
        if first is not None and slots != list(range(first + start, first + start + len(slots))):
            self._run_start[row] = None
        self.table[row, start : start + len(slots)] = torch.tensor(slots, dtype=torch.int64)
        self._num_written[row] = start + len(slots)

    def slots(self, row: int, start: int, end: int) -> torch.Tensor:
        """Slots of positions `start .. end-1` (a view)."""
        return self.table[row, start:end]

    def run_start(self, row: int) -> int | None:
        """The slot of position 0 when the row is one ascending run of slots, else None."""
        return self._run_start[row]

    def num_slots(self, row: int) -> int:
        return self._num_written[row]
