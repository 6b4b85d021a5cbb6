"""Answers go to standard output; logs and progress go to standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence

import click


def print_json(value: object, *, indent: int | None = None) -> None:
    """One JSON value; a line of its own when `indent` is unset."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    if _printable(text) != text:
        # JSON has escapes for what the output cannot encode: half surrogates, or all but ASCII.
        text = json.dumps(value, indent=indent, default=str)
    click.echo(text)


def print_text(text: str, *, is_line: bool = True) -> None:
    """Text for people; what the output cannot encode becomes a question mark."""
    click.echo(_printable(text), nl=is_line)


def _printable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns padded to their widest cell; the last one is not padded."""
    table = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print_text("  ".join([*cells, row[-1]]).rstrip())


def configure_logging(level: str) -> None:
    """Log to standard error, so that standard output holds the answer alone."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(levelname)s %(name)s: %(message)s",
        force=True,
    )
    if level in ("warning", "error"):
        # transformers warns on its own of what this program refuses in one line. The variable is
        # read when it is imported, the level counts when it has been.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        logging.getLogger("transformers").setLevel(logging.ERROR)
