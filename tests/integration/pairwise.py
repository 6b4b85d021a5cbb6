"""A few combinations of settings in which every two values of different settings meet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

Setting = tuple[str, object]


def pairwise(axes: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Combinations, a value of each axis, that cover every pair; always the same ones."""
    missing = dict.fromkeys(all_pairs(axes))
    rows: list[dict[str, object]] = []
    while missing:
        row = dict(next(iter(missing)))
        for axis in (axis for axis in axes if axis not in row):
            # The value that meets the most values it has not met yet; the earliest on ties.
            row[axis] = max(
                axes[axis],
                key=lambda value: sum(
                    _pair(axis, value, other, row[other]) in missing for other in row
                ),
            )
        for pair in all_pairs({axis: [value] for axis, value in row.items()}):
            missing.pop(_pair(*pair[0], *pair[1]), None)
        rows.append({axis: row[axis] for axis in axes})
    return rows


def product(axes: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def all_pairs(axes: Mapping[str, Sequence[object]]) -> list[tuple[Setting, Setting]]:
    """Every two values of different axes."""
    return [
        _pair(one, value, other, other_value)
        for one, other in itertools.combinations(axes, 2)
        for value in axes[one]
        for other_value in axes[other]
    ]


def _pair(axis: str, value: object, other: str, other_value: object) -> tuple[Setting, Setting]:
    first, second = sorted([(axis, value), (other, other_value)], key=lambda setting: setting[0])
    return first, second


def name_of(row: Mapping[str, object]) -> str:
    """A test id."""
    return "-".join(f"{axis}={value}" for axis, value in row.items())
