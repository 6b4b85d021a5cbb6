"""Defaults and errors of the built-in algorithms (algorithms.md 2.4, 2.6)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from app.config.server_args import ServerArgs
from app.config.speculative_fields import DraftFields, NgramFields
from app.config.speculative_shape import (
    check_chain_sampling,
    check_draft_tokens,
    check_tree,
    fault,
    user_value,
    warn_no_effect,
)

_logger = logging.getLogger(__name__)

_STEPS = "speculative_num_steps"
_TOPK = "speculative_eagle_topk"
_NODES = "speculative_num_draft_tokens"

_NGRAM_DRAFT_TOKENS = 12


def resolve_standalone(args: ServerArgs) -> Mapping[str, object]:
    """S, K and N: (3, 1, 4) when none is given; a chain always verifies S + 1 nodes."""
    num_steps, topk, num_draft_tokens = (user_value(args, f) for f in (_STEPS, _TOPK, _NODES))
    if num_steps is None:
        for field, value in ((_TOPK, topk), (_NODES, num_draft_tokens)):
            if value is not None:
                raise fault(args, field, f"needs {_STEPS} beside it; give all three or none")
        return {_STEPS: 3, _TOPK: 1, _NODES: 4}
    topk = 1 if topk is None else topk
    if topk > 1 and num_draft_tokens is None:
        raise fault(
            args, _TOPK, f"needs {_NODES} beside it: how many nodes of the tree are verified"
        )
    if topk == 1 and num_draft_tokens != num_steps + 1:
        if num_draft_tokens is not None:
            _logger.warning(
                "%s = %d becomes %d: a chain (%s = 1) verifies %s + 1 nodes",
                _NODES,
                num_draft_tokens,
                num_steps + 1,
                _TOPK,
                _STEPS,
            )
        num_draft_tokens = num_steps + 1
    return {_STEPS: num_steps, _TOPK: topk, _NODES: num_draft_tokens}


def validate_standalone(args: ServerArgs) -> None:
    """Raise ValueError naming the fields that do not fit together."""
    if args.speculative_draft_model_path is None:
        raise ValueError(
            "speculative_draft_model_path is needed by speculative_algorithm STANDALONE: name a "
            "small model with the target's tokenizer"
        )
    check_tree(args)
    check_draft_tokens(args)
    check_chain_sampling(args)
    warn_no_effect(args, NgramFields.model_fields, "only NGRAM reads it")


def resolve_ngram(args: ServerArgs) -> Mapping[str, object]:
    """K := the breadth, N := 12 and S := N // K when unset. K and S only do accounting here."""
    breadth = args.speculative_ngram_max_bfs_breadth
    if user_value(args, _TOPK) not in (None, breadth):
        _logger.warning(
            "%s = %s becomes %d: NGRAM takes it from speculative_ngram_max_bfs_breadth",
            _TOPK,
            args.speculative_eagle_topk,
            breadth,
        )
    num_draft_tokens = user_value(args, _NODES) or _NGRAM_DRAFT_TOKENS
    # At least 1: zero steps would mean no speculation.
    num_steps = user_value(args, _STEPS) or max(1, num_draft_tokens // breadth)
    return {_STEPS: num_steps, _TOPK: breadth, _NODES: num_draft_tokens}


def validate_ngram(args: ServerArgs) -> None:
    """Raise ValueError for a breadth that is no range or a mode that needs a draft model."""
    if args.speculative_ngram_min_bfs_breadth > args.speculative_ngram_max_bfs_breadth:
        raise fault(
            args,
            "speculative_ngram_min_bfs_breadth",
            "must be at most speculative_ngram_max_bfs_breadth = "
            f"{args.speculative_ngram_max_bfs_breadth}",
        )
    if args.speculative_ngram_capacity < args.speculative_ngram_max_trie_depth:
        raise fault(
            args,
            "speculative_ngram_capacity",
            "must be at least speculative_ngram_max_trie_depth = "
            f"{args.speculative_ngram_max_trie_depth}, what one token may add",
        )
    for field in ("speculative_use_block_verification", "speculative_use_rejection_sampling"):
        if getattr(args, field):
            raise fault(
                args,
                field,
                "needs the draft's probabilities, and NGRAM has no draft model that gives them; "
                "use it with STANDALONE",
            )
    check_draft_tokens(args)
    warn_no_effect(args, DraftFields.model_fields, "NGRAM has no draft model")
    warn_no_effect(args, (_STEPS,), f"NGRAM drafts what it knows, up to {_NODES}")
