"""Says of what a plugin's code raises whose it is, so that a user knows which plugin to mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from app.config.server_args import ServerArgs

if TYPE_CHECKING:
    from app.speculative.registry import AlgorithmRegistration


def one_line(error: BaseException) -> str:
    """Type and message of what somebody else's code raised."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def guard_rules(registration: AlgorithmRegistration) -> AlgorithmRegistration:
    """The registration with rules that only ever raise ValueError, and name the plugin."""
    return replace(
        registration,
        resolve=_guard_resolve(registration),
        validate=_guard_validate(registration),
    )


def _guard_resolve(
    registration: AlgorithmRegistration,
) -> Callable[[ServerArgs], Mapping[str, object]]:
    where = f"plugin algorithm {registration.name}: its resolve"
    rule = registration.resolve

    def resolve(server_args: ServerArgs) -> Mapping[str, object]:
        with _rule_errors_named(where):
            fields = rule(server_args)
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            raise ValueError(f"{where} gave {fields!r}; it must give a mapping of field names")
        # Resolution derives it again under the rule's name; here an error names the plugin.
        server_args.derive(where, fields)
        return fields

    return resolve


def _guard_validate(registration: AlgorithmRegistration) -> Callable[[ServerArgs], None]:
    where = f"plugin algorithm {registration.name}: its validate"
    rule = registration.validate

    def validate(server_args: ServerArgs) -> None:
        with _rule_errors_named(where):
            rule(server_args)

    return validate


@contextmanager
def _rule_errors_named(where: str) -> Iterator[None]:
    """A rule's ValueError is written for the user and stays as it is."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{where} failed with {one_line(error)}") from error


@contextmanager
def build_errors_named(where: str) -> Iterator[None]:
    """For code that loads models: ValueError and a lack of memory stay as they are, failures of the
    machine stay failures while running, anything else is a fault of the plugin: a ValueError."""
    try:
        yield
    except (ValueError, MemoryError):
        raise
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"{where} failed with {one_line(error)}") from error
    except Exception as error:
        raise ValueError(f"{where} failed with {one_line(error)}") from error
