"""Finding the name that somebody meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name` (case and dashes do not count), None when none is near."""
    matches = get_close_matches(name.lower().replace("-", "_"), sorted(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_name_message(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown <what> 'nmae'; did you mean 'name'?`"""
    nearest = nearest_name(name, known)
    return f"unknown {what} {name!r}" + (f"; did you mean {nearest!r}?" if nearest else "")
