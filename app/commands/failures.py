"""Exit codes: 0 done, 1 a failure while running, 2 wrong usage or configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

_logger = logging.getLogger(__name__)


class RunFailure(click.ClickException):
    """Something went wrong while running: exit code 1."""

    exit_code = 1


class WrongInput(click.ClickException):
    """Wrong usage or configuration: exit code 2."""

    exit_code = 2


# click ends quietly when the reader of the output has gone, or by its own signals.
_OF_CLICK = (BrokenPipeError, click.exceptions.Exit, click.Abort)

# Errors whose message is written for a reader; other messages say little without their type.
_WITH_MESSAGE = (click.ClickException, ValueError, OSError, RuntimeError)


def one_line(error: BaseException) -> str:
    """The message on one line, with the error's type where the message needs it."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    text = " ".join(text.split())
    if text and isinstance(error, _WITH_MESSAGE):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def reported() -> Iterator[None]:
    """Turn a user's mistake or a failing machine into one line on standard error.

    A `ValueError` is a user's mistake by convention. Anything unforeseen keeps its traceback: it
    is a fault of this program and has to be found.
    """
    try:
        yield
    except (*_OF_CLICK, RunFailure):
        raise
    except click.UsageError as error:
        raise WrongInput(one_line(error)) from error
    except ValueError as error:
        _log_traceback()
        raise WrongInput(one_line(error)) from error
    except (MemoryError, OSError, RuntimeError) as error:
        raise _run_failure(error) from error


@contextmanager
def decoding_reported(*expected: type[Exception]) -> Iterator[None]:
    """Turn whatever goes wrong while decoding, but for `expected`, into one line and exit code 1.

    The configuration was right by then, so that not even a ValueError is a mistake of the user; an
    algorithm may be a plugin's, so that an unforeseen error may not be this program's.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (*_OF_CLICK, *expected)):
            raise
        raise _run_failure(error, "decoding failed: ") from error


def _run_failure(error: Exception, prefix: str = "") -> RunFailure:
    _log_traceback()
    if isinstance(error, MemoryError):
        prefix += "out of memory: "
    return RunFailure(prefix + one_line(error))


def _log_traceback() -> None:
    _logger.debug("where it went wrong:", exc_info=True)


class ReportingCommand(click.Command):
    """A command whose faults reach the user as one line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with reported():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with reported():
            return super().invoke(ctx)


class ReportingGroup(click.Group):
    """A group that says in one line which command it does not know."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        with reported():
            return super().resolve_command(ctx, args)
