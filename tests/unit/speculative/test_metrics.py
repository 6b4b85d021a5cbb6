from __future__ import annotations

import pytest

from app.speculative.metrics import SpecMetrics


def test_counts_and_json() -> None:
    metrics = SpecMetrics()
    metrics.record(num_proposed=5, num_accepted=3, num_emitted=4)
    metrics.record(num_proposed=5, num_accepted=0, num_emitted=1)
    # A stop inside the accepted run: no bonus token was emitted.
    metrics.record(num_proposed=2, num_accepted=1, num_emitted=1)
    assert metrics.to_json() == {
        "verify_steps": 3,
        "proposed": 12,
        "accepted": 4,
        "accept_length": 2.0,
        "accept_rate": pytest.approx(1 / 3),
        "histogram": [1, 1, 0, 1],
    }


def test_nothing_verified_has_no_rate() -> None:
    assert SpecMetrics().to_json() == {
        "verify_steps": 0,
        "proposed": 0,
        "accepted": 0,
        "accept_length": None,
        "accept_rate": None,
        "histogram": [],
    }


def test_merge_equals_recording_in_one() -> None:
    events = [(4, 2, 3), (4, 0, 1), (4, 4, 5), (4, 2, 3)]
    whole, left, right = SpecMetrics(), SpecMetrics(), SpecMetrics()
    for index, (proposed, accepted, emitted) in enumerate(events):
        for metrics in (whole, left if index < 2 else right):
            metrics.record(num_proposed=proposed, num_accepted=accepted, num_emitted=emitted)
    left.merge(right)
    assert left == whole
