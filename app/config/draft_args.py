"""The draft's record: a copy of the target's resolved one, plus what the draft has of its own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Protocol

from app.config.dtypes import dtype_name
from app.config.model_config import ModelConfig
from app.config.provenance import DRAFT_OVERRIDE_SOURCE, draft_copy_source
from app.config.resolution import AlgorithmLookup, resolve_server_args
from app.config.server_args import ServerArgs
from app.config.validation_messages import field_error
from app.runtime_context import RuntimeContext

_logger = logging.getLogger(__name__)

# Target and draft live in one slot space, one device and one scheduler.
ENGINE_WIDE_FIELDS = (
    "chat_template",
    "chunked_prefill_size",
    "device",
    "kv_cache_memory",
    "log_level",
    "max_running_requests",
    "max_total_tokens",
    "page_size",
    "plugins",
    "random_seed",
    "skip_tokenizer_init",
    "speculative_max_draft_tokens",
    "tokenizer_path",
)

# Field of the copy, the draft field it is taken from; unset means the target's value.
_INHERITED = (
    ("dtype", "speculative_draft_dtype"),
    ("attention_backend", "speculative_draft_attention_backend"),
    ("kv_cache_dtype", "speculative_draft_kv_cache_dtype"),
)
# What belongs to a checkpoint: unset means unset, the target's value means nothing to the draft.
_OWN = (
    ("quantization", "speculative_draft_model_quantization"),
    ("trust_remote_code", "speculative_draft_trust_remote_code"),
    ("json_model_override_args", "speculative_draft_json_model_override_args"),
)
_OWN_CHECKPOINT = (
    ("model_path", "speculative_draft_model_path"),
    ("revision", "speculative_draft_model_revision"),
)
_LOADER_OPTIONS = "model_loader_extra_config"
_GATE_INPUTS = ("attention_backend", "dtype")


_Fields = tuple[str, dict[str, object]]


class HasContextLength(Protocol):
    """The part of a model config that the copy needs."""

    @property
    def context_len(self) -> int: ...


class TargetWorker(Protocol):
    """What the copy needs of the target's worker, which has loaded its weights by now."""

    @property
    def model_config(self) -> HasContextLength: ...

    def load_time_gates(self, server_args: ServerArgs, /) -> Mapping[str, Mapping[str, object]]:
        """source -> fields that loading would decide for `server_args` on this machine."""
        ...


def draft_server_args_copy(
    runtime_context: RuntimeContext,
    *,
    target_worker: TargetWorker,
    algorithms: AlgorithmLookup,
    overrides: Mapping[str, object] | None = None,
) -> ServerArgs:
    """A draft's record; the target's is read and never touched.

    1. Start from `.resolved`: load-time overrides are in, a published record is not.
    2. The draft's own fields (`speculative_draft_*`) win over the target's values.
    3. `overrides` win over everything; a `speculative_draft_*` field among them acts in step 2.
    4. Load-time decisions are made again where the draft's attention backend or dtype differs.
    5. The result is resolved like any record.

    Raises ValueError for an unknown field, a faulty value, or a value that belongs to the engine.
    """
    target = runtime_context.resolved
    wanted = _complete(target, overrides or {})
    base = copy.deepcopy(target).derive(DRAFT_OVERRIDE_SOURCE, wanted, as_draft_copy=True)
    _refuse_engine_wide(target, base, wanted)
    base = resolve_server_args(base, algorithms)
    has_draft_model = algorithms.get(base.speculative_algorithm).has_draft_model
    draft = base
    for reason, fields in (
        *(_checkpoint_fields(base) if has_draft_model else ()),
        *_load_format_fields(base),
        ("target's derived context length", {"context_length": _context_len(target_worker)}),
    ):
        draft = draft.derive(draft_copy_source(reason), fields, record_unchanged=True)
    # Resolution has dealt with the speculative ones, the draft's values must not beat the others.
    plain = {field: value for field, value in wanted.items() if not _is_speculative(field)}
    draft = draft.derive(DRAFT_OVERRIDE_SOURCE, plain, record_unchanged=True)
    if draft.load_format != target.load_format and _LOADER_OPTIONS not in wanted:
        reason = draft_copy_source("the target's options are of another load format")
        draft = draft.derive(reason, {_LOADER_OPTIONS: ()})
    return _decide_again(target, draft, target_worker) if has_draft_model else draft


def _is_speculative(field: str) -> bool:
    return field.startswith("speculative_")


def _context_len(target_worker: TargetWorker) -> int:
    return target_worker.model_config.context_len


def _complete(target: ServerArgs, overrides: Mapping[str, object]) -> dict[str, object]:
    """`overrides`; another draft path drops the revision that was meant for the former one."""
    path = overrides.get("speculative_draft_model_path", target.speculative_draft_model_path)
    if path == target.speculative_draft_model_path:
        return dict(overrides)
    return {"speculative_draft_model_revision": None, **overrides}


def _refuse_engine_wide(target: ServerArgs, base: ServerArgs, wanted: Mapping[str, object]) -> None:
    for field in ENGINE_WIDE_FIELDS:
        if field in wanted and getattr(base, field) != getattr(target, field):
            raise ValueError(
                field_error(
                    field,
                    getattr(base, field),
                    DRAFT_OVERRIDE_SOURCE,
                    f"belongs to the whole engine, where it is {getattr(target, field)!r}; a draft "
                    "cannot have its own",
                )
            )


def _checkpoint_fields(base: ServerArgs) -> list[_Fields]:
    """`(reason, fields)` of what the draft's model has of its own (design.md section 5)."""
    # Path and revision go together: without a path the draft lives in the target's checkpoint.
    own = _OWN if base.speculative_draft_model_path is None else (*_OWN_CHECKPOINT, *_OWN)
    inherited = [pair for pair in _INHERITED if getattr(base, pair[1]) is not None]
    return [(source, {field: getattr(base, source)}) for field, source in (*own, *inherited)]


def _load_format_fields(base: ServerArgs) -> list[_Fields]:
    """The draft's load format reaches the copy for every algorithm, plugins included."""
    load_format = base.speculative_draft_load_format
    if load_format is None:
        return []
    _logger.info("the draft loads with speculative_draft_load_format = %s", load_format)
    return [("speculative_draft_load_format", {"load_format": load_format})]


def _decide_again(target: ServerArgs, draft: ServerArgs, target_worker: TargetWorker) -> ServerArgs:
    if draft.dtype == "auto":
        # An explicit auto: the draft's checkpoint decides, not the target's.
        dtype = dtype_name(ModelConfig.from_server_args(draft).dtype)
        draft = draft.derive(draft_copy_source("dtype of the draft's checkpoint"), {"dtype": dtype})
    if all(getattr(draft, field) == getattr(target, field) for field in _GATE_INPUTS):
        return draft
    for source, fields in target_worker.load_time_gates(draft).items():
        draft = draft.derive(source, fields)
    return draft
