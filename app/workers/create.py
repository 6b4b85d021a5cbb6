"""Builds the worker of the algorithm that a draft copy names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from app.config.server_args import ServerArgs
from app.speculative.plugin_guard import build_errors_named
from app.speculative.registry import RESERVED_NAMES, AlgorithmRegistration, AlgorithmRegistry
from app.workers.base import BaseSpecWorker
from app.workers.tp_worker import BaseTpWorker


def create_spec_worker(
    *,
    algorithms: AlgorithmRegistry,
    server_args: ServerArgs,
    target_worker: BaseTpWorker,
    draft_worker: Callable[[], BaseTpWorker],
) -> BaseSpecWorker:
    """The factory of a registration and the worker it names get the same draft copy.

    Raises ValueError naming the algorithm when one of them is not what it must be.
    """
    registration = algorithms.get(server_args.speculative_algorithm)
    with _errors_named(registration, "factory"):
        worker_class = registration.create_worker(server_args)
    _check_class(registration.name, worker_class)
    with _errors_named(registration, f"worker {worker_class.__name__}"):
        return worker_class(
            server_args=server_args, target_worker=target_worker, draft_worker=draft_worker
        )


def _errors_named(registration: AlgorithmRegistration, part: str) -> AbstractContextManager[None]:
    # A fault of a built-in algorithm is a fault of this program and keeps its type.
    if registration.name in RESERVED_NAMES:
        return nullcontext()
    return build_errors_named(f"algorithm {registration.name}: its {part}")


def _check_class(name: str, worker_class: object) -> None:
    if not (isinstance(worker_class, type) and issubclass(worker_class, BaseSpecWorker)):
        raise ValueError(
            f"algorithm {name}: its factory gave {worker_class!r}; "
            "it must give a subclass of BaseSpecWorker"
        )
    worker = f"algorithm {name}: its worker {worker_class.__name__}"
    if inspect.isabstract(worker_class):
        missing = ", ".join(sorted(worker_class.__abstractmethods__))
        raise ValueError(f"{worker} lacks {missing}")
    try:
        inspect.signature(worker_class).bind(server_args=0, target_worker=0, draft_worker=0)
    except TypeError as error:
        raise ValueError(
            f"{worker} cannot be called with the keywords server_args, target_worker and "
            f"draft_worker: {error}"
        ) from error
