"""The facts about one model that the engine computes with."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from app.config.context_length import derived_context_length, has_learned_positions, max_positions
from app.config.dtypes import dtype_name, torch_dtype
from app.config.frozen_mapping import thaw_mapping
from app.config.hf_config import CONFIG_NAME, load_hf_config
from app.config.json_file import read_json_object
from app.config.model_path import resolve_model_path
from app.config.provenance import user_field
from app.config.quantization import choose_quantization
from app.config.server_args import ServerArgs
from app.config.validation_messages import field_error

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_logger = logging.getLogger(__name__)

_SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Made from a record by `from_server_args`; owns its `hf_config`, which nobody else holds.

    `context_len`: tokens of the longest sequence. `max_position_embeddings`: what the config says
    without rope scaling; with learned positions nothing may run beyond it.
    """

    model_path: Path
    hf_config: PretrainedConfig
    architecture: str
    dtype: torch.dtype
    context_len: int
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    quantization: str | None
    hf_eos_token_ids: tuple[int, ...]
    has_learned_positions: bool
    max_position_embeddings: int

    @classmethod
    def from_server_args(cls, server_args: ServerArgs) -> Self:
        """Read the config of the record's own model. Raises ValueError naming file or field."""
        model_path = resolve_model_path(
            server_args.model_path,
            server_args.revision,
            server_args.download_dir,
            field=user_field(server_args.sources, "model_path"),
        )
        hf_config = load_hf_config(
            model_path,
            trust_remote_code=server_args.trust_remote_code,
            trust_field=user_field(server_args.sources, "trust_remote_code"),
            overrides=thaw_mapping(server_args.json_model_override_args),
            override_field=user_field(server_args.sources, "json_model_override_args"),
        )
        return cls.from_hf_config(hf_config, server_args, model_path)

    @classmethod
    def from_hf_config(
        cls, hf_config: PretrainedConfig, server_args: ServerArgs, model_path: Path
    ) -> Self:
        """As `from_server_args` with the config read already; `hf_config` itself is not kept."""
        hf_config = copy.deepcopy(hf_config)
        # Multimodal wrappers hold the language model's values in a part of their own.
        text: Any = hf_config.get_text_config(decoder=True)
        where = _Reader(text, model_path)
        architecture = where.architecture(hf_config)
        heads = where.positive("num_attention_heads")
        hidden_size = where.positive("hidden_size")
        kv_heads = where.positive("num_key_value_heads", heads)
        if heads % kv_heads:
            raise where.fault(
                f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = "
                f"{kv_heads}"
            )
        if hidden_size < heads and getattr(text, "head_dim", None) is None:
            raise where.fault(
                f"hidden_size = {hidden_size} is less than num_attention_heads = {heads}"
            )
        learned = has_learned_positions(text)
        context_len = _choose_context_len(text, server_args, learned, where)
        return cls(
            model_path=model_path,
            hf_config=hf_config,
            architecture=architecture,
            dtype=_choose_dtype(server_args, text, hf_config, where),
            context_len=context_len,
            vocab_size=where.positive("vocab_size"),
            hidden_size=hidden_size,
            num_hidden_layers=where.positive("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=where.positive("head_dim", hidden_size // heads),
            quantization=choose_quantization(
                server_args.quantization,
                user_field(server_args.sources, "quantization"),
                hf_config,
                model_path,
            ),
            hf_eos_token_ids=_eos_token_ids(hf_config, text, model_path),
            has_learned_positions=learned,
            max_position_embeddings=max_positions(text) or context_len,
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads numbers of a config with errors that name its file."""

    config: Any
    model_path: Path

    def positive(self, name: str, default: int | None = None) -> int:
        try:
            value = getattr(self.config, name, None)
        except RuntimeError as error:  # configs with a value a layer refuse to give one for all
            raise self.fault(f"{name}: {error}") from None
        value = default if value is None else value
        if value is None:
            raise self.fault(f"it has no {name}, so it is no decoder with softmax attention")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fault(f"{name} must be a positive whole number, got {value!r}")
        return value

    def architecture(self, hf_config: PretrainedConfig) -> str:
        architectures: Any = hf_config.architectures
        if not architectures:
            raise self.fault(
                "architectures is missing; it names the model class (LlamaForCausalLM, ...)"
            )
        if not isinstance(architectures, list) or not isinstance(architectures[0], str):
            raise self.fault(f"architectures must be a list of class names, got {architectures!r}")
        return architectures[0]

    def fault(self, problem: str) -> ValueError:
        is_file = self.model_path.suffix == ".gguf"
        where = self.model_path if is_file else self.model_path / "config.json"
        names: Any = self.config.architectures
        is_known = isinstance(names, list) and names and isinstance(names[0], str)
        return ValueError(
            f"{where} ({names[0] if is_known else self.config.model_type}): {problem}"
        )


def _choose_context_len(
    text: PretrainedConfig, server_args: ServerArgs, learned: bool, where: _Reader
) -> int:
    """The record's context_length, else what the config allows.

    A draft's record carries the target's length: its config is raised to that where positions are
    computed, because a draft may only cost speed.
    """
    asked, derived = server_args.context_length, derived_context_length(text)
    if derived is None:
        if asked is None:
            raise where.fault("it gives no max_position_embeddings; set context_length")
        return asked
    if asked is None or asked <= derived:
        return derived if asked is None else asked
    if server_args.is_draft_copy:
        if not learned:
            _logger.warning(
                "draft %s: max_position_embeddings raised from %d to the target's context "
                "length %d; it may draft badly beyond %d tokens",
                where.model_path,
                derived,
                asked,
                derived,
            )
            text.max_position_embeddings = asked
        return asked
    how = (
        "its positions are learned, so a longer context needs another model"
        if learned
        else 'to allow it all the same, set json_model_override_args: {"max_position_embeddings": '
        f"{asked}}}"
    )
    raise ValueError(
        field_error(
            "context_length",
            asked,
            server_args.sources["context_length"],
            f"{where.model_path} is made for at most {derived} tokens; {how}",
        )
    )


def _choose_dtype(
    server_args: ServerArgs, text: PretrainedConfig, hf_config: PretrainedConfig, where: _Reader
) -> torch.dtype:
    if server_args.dtype != "auto":
        return torch_dtype(server_args.dtype)
    declared: Any = getattr(text, "dtype", None) or getattr(hf_config, "dtype", None)
    if declared is None:
        return torch.float32
    name = dtype_name(declared) if isinstance(declared, torch.dtype) else str(declared)
    try:
        return torch_dtype(name)
    except ValueError:
        field = user_field(server_args.sources, "dtype")
        raise where.fault(
            f"its dtype {name} is not supported; set {field} to one of "
            f"{', '.join(dtype_name(dtype) for dtype in _SUPPORTED_DTYPES)}"
        ) from None


def _eos_token_ids(
    hf_config: PretrainedConfig, text: PretrainedConfig, model_path: Path
) -> tuple[int, ...]:
    """Of config.json and of generation_config.json: chat models end their turns with a token that
    often stands in the latter alone."""
    value: Any = getattr(hf_config, "eos_token_id", None)
    if value is None:
        value = getattr(text, "eos_token_id", None)
    found = _as_ids(value, model_path / CONFIG_NAME)
    path = model_path / "generation_config.json"
    if path.is_file():
        found += _as_ids(read_json_object(path).get("eos_token_id"), path)
    return tuple(dict.fromkeys(found))


def _as_ids(value: Any, path: Path) -> list[int]:
    ids = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
        raise ValueError(
            f"{path}: eos_token_id must be a token id or a list of token ids, got {value!r}"
        )
    return ids
