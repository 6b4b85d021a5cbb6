"""Fields of `ServerArgs` that say which model is loaded and how."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, PositiveInt

from app.config.field_types import DType, LoadFormat, Pairs, Quantization
from app.config.frozen_mapping import FrozenMapping


class ModelFields(BaseModel):
    """Which model is loaded and how."""

    model_path: str = Field(
        min_length=1,
        description="Target model: a name the project knows (smollm2-135m), a local directory, "
        "a .gguf file, or a hub id.",
    )
    tokenizer_path: str | None = Field(
        default=None, description="Where the tokenizer is; unset: model_path."
    )
    revision: str | None = Field(default=None, description="Hub revision of the target model.")
    trust_remote_code: bool = Field(
        default=False, description="Allow Python code that the target's checkpoint brings along."
    )
    load_format: LoadFormat = Field(
        default="auto",
        description="How the weights are stored; auto tries safetensors, then .bin, then .pt.",
    )
    model_loader_extra_config: Pairs = Field(
        default_factory=FrozenMapping,
        description="Options of the load format's loader (a mapping).",
    )
    download_dir: str | None = Field(
        default=None, description="Where hub downloads go; unset: the hub library's cache."
    )
    json_model_override_args: Pairs = Field(
        default_factory=FrozenMapping,
        description="Values that replace those of the target's config.json (a mapping; nested "
        "mappings merge). They do not reach the draft.",
    )
    context_length: PositiveInt | None = Field(
        default=None,
        description="Longest sequence in tokens; unset: what the target's config allows.",
    )
    dtype: DType = Field(
        default="auto", description="Type of weights and activations; auto: the checkpoint's."
    )
    quantization: Quantization | None = Field(
        default=None,
        description="Quantization of the target; unset: what the checkpoint declares; unquant: "
        "none.",
    )
    model_impl: Literal["auto", "native", "transformers"] = Field(
        default="auto",
        description="Whose modelling code runs; auto: the project's own where it has one.",
    )
    skip_tokenizer_init: bool = Field(
        default=False, description="Load no tokenizer: prompts are token ids."
    )
    chat_template: str | None = Field(
        default=None,
        description="Chat template, a path or the text itself; unset: the tokenizer's own.",
    )
