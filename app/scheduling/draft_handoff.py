"""Builds a draft's worker while the draft's own record is the published one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.config.server_args import ServerArgs
from app.runtime_context import RuntimeContext
from app.workers.base import BaseSpecWorker


class DraftScopeLike(Protocol):
    """The two providers of a `DraftScope` that the hand-off calls."""

    server_args: Callable[[], ServerArgs]
    spec_worker: Callable[[], BaseSpecWorker]


def build_spec_worker(scope: DraftScopeLike, runtime_context: RuntimeContext) -> BaseSpecWorker:
    """Publish the scope's record, then build everything in the scope.

    This cannot happen inside a provider: injected arguments are built before the provider's
    callable runs, so they would be built under the target's record. The record is restored on
    success and on error.
    """
    try:
        server_args = scope.server_args()
    except ValueError as error:
        raise ValueError(f"draft worker (its configuration): {error}") from error
    with runtime_context.published(server_args):
        try:
            return scope.spec_worker()
        except ValueError as error:
            raise ValueError(
                f"draft worker ({server_args.speculative_algorithm}, model "
                f"{server_args.model_path}): {error}"
            ) from error
