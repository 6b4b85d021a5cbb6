"""Checks of the drafted chain or tree: steps S, candidates K, nodes N (algorithms.md 2.4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from app.config.provenance import DRAFT_OVERRIDE_SOURCE, is_rule
from app.config.server_args import ServerArgs
from app.config.validation_messages import field_error

_logger = logging.getLogger(__name__)


def user_value(args: ServerArgs, field: str) -> int | None:
    """A number that the user gave; None also where a rule decided it, so that rules can repeat."""
    value = getattr(args, field)
    assert value is None or isinstance(value, int)
    return None if is_rule(args.sources[field]) else value


def fault(args: ServerArgs, field: str, problem: str) -> ValueError:
    """A ValueError naming the field, its value and its source."""
    return ValueError(field_error(field, getattr(args, field), args.sources[field], problem))


def warn_no_effect(args: ServerArgs, fields: Iterable[str], reason: str) -> None:
    """Warn of fields that were set although `reason` leaves them without effect.

    A draft copy is resolved like its target, so it speaks up only about call-time overrides.
    """
    sources = args.sources
    for field in fields:
        is_news = not args.is_draft_copy or sources[field] == DRAFT_OVERRIDE_SOURCE
        default = type(args).model_fields[field].get_default(call_default_factory=True)
        is_set = args.is_set(field) and not is_rule(sources[field])
        if is_set and is_news and getattr(args, field) != default:
            _logger.warning(
                "%s = %r (%s) has no effect: %s",
                field,
                getattr(args, field),
                sources[field],
                reason,
            )


def max_tree_nodes(num_steps: int, topk: int) -> int:
    """Most nodes besides the root that `num_steps` steps of `topk` candidates can yield.

    The first step yields K, each later one K for each of K beams.
    """
    return topk + (num_steps - 1) * topk**2


def check_tree(args: ServerArgs) -> None:
    """Raise ValueError unless S steps of K candidates yield the N - 1 nodes that are verified."""
    num_steps, topk = args.speculative_num_steps, args.speculative_eagle_topk
    num_draft_tokens = args.speculative_num_draft_tokens
    assert num_steps is not None
    assert topk is not None
    assert num_draft_tokens is not None
    available = max_tree_nodes(num_steps, topk)
    if num_draft_tokens - 1 > available:
        raise fault(
            args,
            "speculative_num_draft_tokens",
            f"speculative_num_steps = {num_steps} and speculative_eagle_topk = {topk} draft at "
            f"most {available} tokens (K + (S - 1) * K^2), so at most {available + 1} with the "
            "root can be verified",
        )


def check_draft_tokens(args: ServerArgs) -> None:
    """Raise ValueError when the tree is larger than the engine allows."""
    num_draft_tokens = args.speculative_num_draft_tokens
    if num_draft_tokens is not None and num_draft_tokens > args.speculative_max_draft_tokens:
        raise fault(
            args,
            "speculative_num_draft_tokens",
            f"must be at most speculative_max_draft_tokens = {args.speculative_max_draft_tokens}; "
            "draft less or raise that",
        )


def check_chain_sampling(args: ServerArgs) -> None:
    """Raise ValueError unless block verification and rejection sampling are possible.

    Both need the draft's distribution over a chain, and are exact, so lossy thresholds contradict
    them.
    """
    for field in ("speculative_use_block_verification", "speculative_use_rejection_sampling"):
        if not getattr(args, field):
            continue
        if args.speculative_eagle_topk != 1:
            raise fault(
                args,
                field,
                "needs a chain: set speculative_eagle_topk to 1 "
                f"(it is {args.speculative_eagle_topk})",
            )
        for threshold in (
            "speculative_accept_threshold_single",
            "speculative_accept_threshold_acc",
        ):
            if getattr(args, threshold) != 1.0:
                raise fault(
                    args, field, f"needs {threshold} = 1.0 (it is {getattr(args, threshold)})"
                )
    if args.speculative_use_block_verification:
        warn_no_effect(
            args,
            ("speculative_use_rejection_sampling",),
            "speculative_use_block_verification replaces token-by-token rejection",
        )
