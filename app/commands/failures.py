"""Exit codes: 0 done, 1 a failure while running, 2 wrong usage or configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click


class RunFailure(click.ClickException):
    """Something went wrong while running: exit code 1."""

    exit_code = 1


class WrongInput(click.ClickException):
    """Wrong usage or configuration: exit code 2."""

    exit_code = 2


def one_line(error: BaseException) -> str:
    """The message on one line; a message-less error gives its type."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def reported() -> Iterator[None]:
    """Turn a user's mistake or a failing machine into one line on standard error.

    A `ValueError` is a user's mistake by convention. Anything unforeseen keeps its traceback: it
    is a fault of this program and has to be found.
    """
    try:
        yield
    except (BrokenPipeError, click.exceptions.Exit, click.Abort):
        raise  # click ends quietly when the reader of the output has gone, or by its own signals
    except click.UsageError as error:
        raise WrongInput(one_line(error)) from error
    except ValueError as error:
        raise WrongInput(one_line(error)) from error
    except MemoryError as error:
        raise RunFailure(f"out of memory: {one_line(error)}") from error
    except (OSError, RuntimeError) as error:
        raise RunFailure(one_line(error)) from error


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
