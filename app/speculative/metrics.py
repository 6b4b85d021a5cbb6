"""What speculation achieved for one request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SpecMetrics:
    """Counters over the verify steps of a request.

    `proposed` counts draft nodes without the root, `accepted` those that the target took (without
    the bonus token), `emitted` all tokens that verifies gave, up to a stop inside an accepted run.
    The prefill's token and plain decode steps count nowhere. `histogram[n]` is the number of
    verifies with n accepted tokens.
    """

    verify_steps: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    histogram: Counter[int] = field(default_factory=Counter)

    def record(self, *, num_proposed: int, num_accepted: int, num_emitted: int) -> None:
        """Count one verify."""
        self.verify_steps += 1
        self.proposed += num_proposed
        self.accepted += num_accepted
        self.emitted += num_emitted
        self.histogram[num_accepted] += 1

    def merge(self, other: SpecMetrics) -> None:
        """Add the counters of another request."""
        self.verify_steps += other.verify_steps
        self.proposed += other.proposed
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.histogram.update(other.histogram)

    @property
    def accept_length(self) -> float | None:
        """Tokens emitted a verify; None before the first verify."""
        return self.emitted / self.verify_steps if self.verify_steps else None

    @property
    def accept_rate(self) -> float | None:
        """Share of proposed tokens that were accepted; None while nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    def to_json(self) -> dict[str, object]:
        """The `spec` object of a result; entry n of its histogram counts the verifies with n
        accepted tokens."""
        width = max(self.histogram, default=-1) + 1
        return {
            "verify_steps": self.verify_steps,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "accept_length": self.accept_length,
            "accept_rate": self.accept_rate,
            "histogram": [self.histogram[count] for count in range(width)],
        }
