"""Builds the worker of the algorithm that a draft copy names."""

from __future__ import annotations

from collections.abc import Callable

from app.config.server_args import ServerArgs
from app.speculative.registry import AlgorithmRegistry
from app.workers.base import BaseSpecWorker
from app.workers.tp_worker import BaseTpWorker


def create_spec_worker(
    *,
    algorithms: AlgorithmRegistry,
    server_args: ServerArgs,
    target_worker: BaseTpWorker,
    draft_worker: Callable[[], BaseTpWorker],
) -> BaseSpecWorker:
    """The factory of a registration and the worker it names get the same draft copy."""
    registration = algorithms.get(server_args.speculative_algorithm)
    worker_class = registration.create_worker(server_args)
    if not (isinstance(worker_class, type) and issubclass(worker_class, BaseSpecWorker)):
        raise ValueError(
            f"algorithm {registration.name}: its factory gave {worker_class!r}; "
            "it must give a subclass of BaseSpecWorker"
        )
    return worker_class(
        server_args=server_args, target_worker=target_worker, draft_worker=draft_worker
    )
