"""The record an engine works with, and the slot in which a draft's record is published."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from app.config.server_args import ServerArgs

_logger = logging.getLogger(__name__)

# One variable for all engines and not one each: a context that a thread copied keeps every
# variable alive that was set in it. The keys are bare objects, so they keep no engine alive.
_published: ContextVar[tuple[tuple[object, ServerArgs], ...]] = ContextVar(
    "published_server_args", default=()
)


class RuntimeContext:
    """One engine's configuration slot; two engines in one process do not see each other.

    Threads that must see a published record run under `contextvars.copy_context()`.
    """

    def __init__(self, target_config: ServerArgs) -> None:
        self._key = object()
        self._lock = Lock()
        self._num_published = 0
        self._resolved = target_config
        self._overrides: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = ()

    @property
    def resolved(self) -> ServerArgs:
        """The engine's record, whatever is published."""
        return self._resolved

    @property
    def server_args(self) -> ServerArgs:
        """The record published in this context, else the engine's."""
        for key, record in reversed(_published.get()):
            if key is self._key:
                return record
        return self._resolved

    @property
    def overrides(self) -> tuple[tuple[str, dict[str, object]], ...]:
        """`(source, fields)` of every override so far, oldest first."""
        return tuple((source, dict(fields)) for source, fields in self._overrides)

    @contextmanager
    def published(self, server_args: ServerArgs) -> Iterator[ServerArgs]:
        """Show `server_args` in `.server_args` inside the block; nests, restores on error too."""
        with self._lock:
            self._num_published += 1
        token = _published.set((*_published.get(), (self._key, server_args)))
        try:
            yield server_args
        finally:
            _published.reset(token)
            with self._lock:
                self._num_published -= 1

    def override(self, source: str, **fields: object) -> ServerArgs:
        """Replace values of the engine's record, all or none; the one way to change it.

        Raises ValueError for an unknown field or a faulty value, RuntimeError while a record is
        published in any thread: what a draft decides must not reach the target.
        """
        with self._lock:
            if self._num_published:
                raise RuntimeError(
                    f"{source}: the engine's record cannot change while a draft's record is "
                    f"published (fields: {', '.join(fields)})"
                )
            self._resolved = self._resolved.derive(source, fields)
            self._overrides = (*self._overrides, (source, tuple(fields.items())))
        _logger.info("%s: %s", source, fields)
        return self._resolved
