"""The algorithms that ship with the engine. Worker modules load when an algorithm is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.config.server_args import ServerArgs
from app.config.speculative_rules import (
    resolve_ngram,
    resolve_standalone,
    validate_ngram,
    validate_standalone,
)
from app.speculative.registry import NO_ALGORITHM, AlgorithmRegistration, AlgorithmRegistry

if TYPE_CHECKING:
    from app.workers.base import BaseSpecWorker


def _target_only(server_args: ServerArgs) -> type[BaseSpecWorker]:
    from app.workers.target_only_worker import TargetOnlyWorker

    return TargetOnlyWorker


def _standalone(server_args: ServerArgs) -> type[BaseSpecWorker]:
    from app.workers.standalone_worker import StandaloneWorker

    return StandaloneWorker


def _ngram(server_args: ServerArgs) -> type[BaseSpecWorker]:
    from app.workers.ngram_worker import NGRAMWorker

    return NGRAMWorker


def builtin_algorithms() -> AlgorithmRegistry:
    """A fresh registry of the built-in algorithms."""
    registrations = (
        AlgorithmRegistration(
            name=NO_ALGORITHM,
            create_worker=_target_only,
            summary="the target alone, one token a step",
        ),
        AlgorithmRegistration(
            name="STANDALONE",
            create_worker=_standalone,
            has_draft_model=True,
            resolve=resolve_standalone,
            validate=validate_standalone,
            summary="an ordinary small language model with the target's tokenizer drafts",
        ),
        AlgorithmRegistration(
            name="NGRAM",
            create_worker=_ngram,
            resolve=resolve_ngram,
            validate=validate_ngram,
            summary="continuations of n-grams seen before; no draft model",
        ),
    )
    return AlgorithmRegistry({registration.name: registration for registration in registrations})
