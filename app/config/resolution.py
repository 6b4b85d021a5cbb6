"""From what the user gave to the record an engine works with: pure rules in a fixed order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from app.config.model_path import find_local_model
from app.config.provenance import rule_source
from app.config.server_args import ServerArgs
from app.config.speculative_fields import DraftFields, NgramFields, SpeculationFields
from app.config.speculative_shape import warn_no_effect

_logger = logging.getLogger(__name__)

DEFAULT_MAX_RUNNING_REQUESTS = 48

Rule = Callable[[ServerArgs], Mapping[str, object]]


class Algorithm(Protocol):
    """What resolution must know of a speculative algorithm."""

    @property
    def name(self) -> str: ...

    @property
    def has_draft_model(self) -> bool: ...

    @property
    def resolve(self) -> Rule:
        """Values of unset fields; called again on its own results, so it must be idempotent."""
        ...

    @property
    def validate(self) -> Callable[[ServerArgs], None]:
        """Raises ValueError."""
        ...


class AlgorithmLookup(Protocol):
    """The registry of algorithms."""

    def get(self, name: str | None, /) -> Algorithm:
        """Raises ValueError for an unknown name, listing the known ones."""
        ...


def resolve_server_args(server_args: ServerArgs, algorithms: AlgorithmLookup) -> ServerArgs:
    """The record with every rule applied; each changed value has the source "rule <name>".

    Resolving a resolved record changes nothing. Raises ValueError naming the fields at fault.
    """
    args = _apply(_algorithm_name, server_args)
    algorithm = algorithms.get(args.speculative_algorithm)
    for rule in (_zero_steps, _no_speculation, _draft_revision, _tokenizer, _max_running_requests):
        args = _apply(rule, args)
    is_off = args.speculative_algorithm is None
    _warn_of_hub_settings(args, has_draft_model=algorithm.has_draft_model and not is_off)
    if is_off:
        return args
    args = args.derive(rule_source(algorithm.name), algorithm.resolve(args))
    algorithm.validate(args)
    return args


def _warn_of_hub_settings(args: ServerArgs, has_draft_model: bool) -> None:
    """Settings of downloads, where nothing is downloaded."""
    draft = args.speculative_draft_model_path if has_draft_model else None
    if find_local_model(args.model_path) is not None:
        warn_no_effect(args, ("revision",), f"{args.model_path} is not a hub id")
    if draft is not None and find_local_model(draft) is not None:
        reason = f"{draft} is not a hub id"
        warn_no_effect(args, ("speculative_draft_model_revision",), reason)
    if has_draft_model and draft is None:
        reason = "without speculative_draft_model_path the draft is of the target's checkpoint"
        warn_no_effect(args, ("speculative_draft_model_revision",), reason)
    names = [name for name in (args.model_path, args.tokenizer_path, draft) if name is not None]
    if all(find_local_model(name) is not None for name in names):
        warn_no_effect(args, ("download_dir",), "no model is named by a hub id")


def _apply(rule: Rule, args: ServerArgs) -> ServerArgs:
    return args.derive(rule_source(rule.__name__.lstrip("_")), rule(args))


def _algorithm_name(args: ServerArgs) -> Mapping[str, object]:
    """Names are upper-case; NONE is no algorithm."""
    if args.speculative_algorithm is None:
        return {}
    name = args.speculative_algorithm.upper()
    return {"speculative_algorithm": None if name == "NONE" else name}


def _zero_steps(args: ServerArgs) -> Mapping[str, object]:
    """Zero drafted tokens are no speculation."""
    if args.speculative_algorithm is None or args.speculative_num_steps != 0:
        return {}
    _logger.info(
        "speculative_num_steps = 0: %s is off, the target decodes alone", args.speculative_algorithm
    )
    return {"speculative_algorithm": None}


def _no_speculation(args: ServerArgs) -> Mapping[str, object]:
    """Without an algorithm nothing is drafted, and buffers are sized for that."""
    if args.speculative_algorithm is not None:
        return {}
    # Whoever turned speculation off on purpose need not hear of each field.
    if not args.is_set("speculative_algorithm") and args.speculative_num_steps != 0:
        fields = [*SpeculationFields.model_fields, *DraftFields.model_fields]
        warn_no_effect(
            args, [*fields, *NgramFields.model_fields], "no speculative_algorithm is set"
        )
    return dict.fromkeys(
        ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    )


def _draft_revision(args: ServerArgs) -> Mapping[str, object]:
    """A draft that names no revision gets main, never the target's."""
    has_path = args.speculative_draft_model_path is not None
    if not has_path or args.speculative_draft_model_revision is not None:
        return {}
    return {"speculative_draft_model_revision": "main"}


def _tokenizer(args: ServerArgs) -> Mapping[str, object]:
    """The tokenizer lies with the target, also for a draft made from the record later."""
    return {} if args.tokenizer_path is not None else {"tokenizer_path": args.model_path}


def _max_running_requests(args: ServerArgs) -> Mapping[str, object]:
    if args.max_running_requests is not None:
        return {}
    _logger.info("max_running_requests is unset: %d", DEFAULT_MAX_RUNNING_REQUESTS)
    return {"max_running_requests": DEFAULT_MAX_RUNNING_REQUESTS}
