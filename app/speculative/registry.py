"""Which speculative algorithms an engine knows: an immutable value, owned by the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.config.server_args import ServerArgs
from app.speculative.plugin_guard import guard_rules

if TYPE_CHECKING:
    from app.workers.base import BaseSpecWorker

CreateWorker = Callable[[ServerArgs], "type[BaseSpecWorker]"]

NO_ALGORITHM = "NONE"
# Names that a plugin may not take: every algorithm of the field, built in here or not yet.
RESERVED_NAMES = (
    NO_ALGORITHM,
    "EAGLE",
    "EAGLE3",
    "NEXTN",
    "STANDALONE",
    "FROZEN_KV_MTP",
    "NGRAM",
    "DFLASH",
    "DSPARK",
)


def _no_defaults(server_args: ServerArgs) -> Mapping[str, object]:
    return {}


def _accept_all(server_args: ServerArgs) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmRegistration:
    """What the engine must know of an algorithm.

    `create_worker(server_args)` names the worker class and is called with the draft copy while it
    is published. `resolve` gives values for fields that the user left unset; `validate` raises
    ValueError. `has_draft_model`: the draft copy carries the draft's path, format and dtype.
    """

    name: str
    create_worker: CreateWorker
    has_draft_model: bool = False
    resolve: Callable[[ServerArgs], Mapping[str, object]] = _no_defaults
    validate: Callable[[ServerArgs], None] = _accept_all
    summary: str = ""

    @property
    def is_speculative(self) -> bool:
        return self.name != NO_ALGORITHM


class AlgorithmRegistry:
    """Registrations by name. Adding one makes a new registry: engines cannot affect each other."""

    def __init__(self, registrations: Mapping[str, AlgorithmRegistration]) -> None:
        self._registrations = MappingProxyType(dict(registrations))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._registrations)

    def __iter__(self) -> Iterator[AlgorithmRegistration]:
        return iter(self._registrations.values())

    def get(self, name: str | None) -> AlgorithmRegistration:
        """The registration of `name` in any case; None means no speculation."""
        known = self._registrations.get((name or NO_ALGORITHM).upper())
        if known is None:
            raise ValueError(
                f"speculative_algorithm: {name!r} is unknown; known are {', '.join(self.names)}"
            )
        return known

    def with_registration(self, registration: AlgorithmRegistration) -> AlgorithmRegistry:
        """A registry with a plugin's algorithm besides the present ones."""
        name = registration.name.upper()
        _refuse_reserved(name)
        if name in self._registrations:
            raise ValueError(
                f"plugin algorithm {name!r} is registered already; known are "
                f"{', '.join(self.names)}"
            )
        added = guard_rules(replace(registration, name=name))
        return AlgorithmRegistry({**self._registrations, name: added})


def _refuse_reserved(name: str) -> None:
    if name in RESERVED_NAMES:
        raise ValueError(
            f"plugin algorithm {name!r}: the name is reserved; reserved are "
            f"{', '.join(RESERVED_NAMES)}"
        )


class SpeculativeAlgorithm:
    """Namespace of the decorator with which plugins make registrations."""

    @staticmethod
    def register(
        name: str,
        *,
        has_draft_model: bool = False,
        resolve: Callable[[ServerArgs], Mapping[str, object]] = _no_defaults,
        validate: Callable[[ServerArgs], None] = _accept_all,
        summary: str = "",
    ) -> Callable[[CreateWorker], AlgorithmRegistration]:
        """Turn a factory `f(server_args) -> worker class` into an `AlgorithmRegistration`.

        Nothing global changes: hand the result to `registry.with_registration`, an entry point of
        the group `draftscope.speculative_algorithms`, or `plugins:` in YAML.
        """
        _refuse_reserved(name.upper())

        def decorate(create_worker: CreateWorker) -> AlgorithmRegistration:
            return AlgorithmRegistration(
                name=name.upper(),
                create_worker=create_worker,
                has_draft_model=has_draft_model,
                resolve=resolve,
                validate=validate,
                summary=summary,
            )

        return decorate
