"""Fields of `ServerArgs` about drafting and verifying."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from app.config.field_types import AttentionBackend, DType, LoadFormat, Pairs, Quantization
from app.config.frozen_mapping import FrozenMapping

Threshold = Annotated[float, Field(gt=0.0, le=1.0)]


class DraftFields(BaseModel):
    """What the draft has that the target has not."""

    speculative_draft_model_path: str | None = Field(
        default=None, min_length=1, description="Draft model, spelled like model_path."
    )
    speculative_draft_model_revision: str | None = Field(
        default=None, description="Hub revision of the draft; unset: main."
    )
    speculative_draft_load_format: LoadFormat | None = Field(
        default=None, description="Load format of the draft; unset: the target's load_format."
    )
    speculative_draft_model_quantization: Quantization | None = Field(
        default=None,
        description="Quantization of the draft; unset: what its checkpoint declares; unquant: "
        "none.",
    )
    speculative_draft_dtype: DType | None = Field(
        default=None, description="Type of the draft's weights; unset: the target's."
    )
    speculative_draft_attention_backend: AttentionBackend | None = Field(
        default=None, description="Attention of the draft; unset: the target's."
    )
    speculative_draft_kv_cache_dtype: DType | None = Field(
        default=None, description="Type of the draft's cached keys; unset: the target's."
    )
    speculative_draft_trust_remote_code: bool = Field(
        default=False, description="Allow Python code that the draft's checkpoint brings along."
    )
    speculative_draft_json_model_override_args: Pairs = Field(
        default_factory=FrozenMapping,
        description="Values that replace those of the draft's config.json (a mapping).",
    )


class SpeculationFields(BaseModel):
    """How much is drafted and how it is verified."""

    speculative_algorithm: str | None = Field(
        default=None,
        description="STANDALONE, NGRAM or a plugin's name, in any case; unset or NONE: the "
        "target decodes alone.",
    )
    speculative_num_steps: NonNegativeInt | None = Field(
        default=None, description="Tokens drafted in a row; 0: no speculation."
    )
    speculative_eagle_topk: PositiveInt | None = Field(
        default=None, description="Candidates kept at each step; 1: a chain, more: a tree."
    )
    speculative_num_draft_tokens: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="Nodes verified at once, with the root (the last token)."
    )
    speculative_accept_threshold_single: Threshold = Field(
        default=1.0,
        description="Accept a token whose target probability reaches this; 1: lossless.",
    )
    speculative_accept_threshold_acc: Threshold = Field(
        default=1.0,
        description="Acceptance probabilities are divided by this; 1: lossless.",
    )
    speculative_use_rejection_sampling: bool = Field(
        default=False,
        description="Sample drafts and accept them by the ratio of probabilities (chains only).",
    )
    speculative_use_block_verification: bool = Field(
        default=False, description="Verify drafted tokens jointly, not one by one (chains only)."
    )
    speculative_max_draft_tokens: Annotated[int, Field(ge=2)] = Field(
        default=64,
        description="Upper limit of speculative_num_draft_tokens for every draft of the engine's "
        "life, and so of the key-value slots that one step reserves for a request.",
    )


class NgramFields(BaseModel):
    """The trie of the NGRAM algorithm."""

    speculative_ngram_min_bfs_breadth: PositiveInt = Field(
        default=1, description="Fewest continuations that a matched context expands to."
    )
    speculative_ngram_max_bfs_breadth: PositiveInt = Field(
        default=10, description="Most continuations that a matched context expands to."
    )
    speculative_ngram_match_type: Literal["BFS", "PROB"] = Field(
        default="BFS", description="Prefer recent continuations (BFS) or frequent ones (PROB)."
    )
    speculative_ngram_max_trie_depth: Annotated[int, Field(ge=2)] = Field(
        default=18, description="Longest context in tokens that the trie remembers."
    )
    speculative_ngram_capacity: PositiveInt = Field(
        default=1_000_000, description="Most nodes of the trie; old ones make room."
    )
