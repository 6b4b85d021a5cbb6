"""Which token ids a separately trained draft may propose to its target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from app.config.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Ids that mean the same token in both models.

    `num_ids` is the end of the shared range, `excluded` the ids below it that differ. Ids that only
    the target has are never proposed, but stay reachable: the target samples from all of its own.
    """

    num_ids: int
    excluded: tuple[int, ...]
    target_vocab_size: int

    def restrict(self, logits: torch.Tensor) -> torch.Tensor:
        """Draft logits `[R, draft vocab]` -> `[R, target vocab]`, -inf where nothing may be
        proposed."""
        if logits.shape[-1] == self.num_ids == self.target_vocab_size and not self.excluded:
            return logits
        restricted = logits.new_full((logits.shape[0], self.target_vocab_size), -torch.inf)
        restricted[:, : self.num_ids] = logits[:, : self.num_ids]
        if self.excluded:
            restricted[:, list(self.excluded)] = -torch.inf
        return restricted


def compare_vocabularies(target: ModelConfig, draft: ModelConfig) -> DraftVocabulary:
    """Compare real token ids, not embedding sizes: embeddings are padded differently for the same
    tokenizer (151,936 against 152,064 rows), while equal sizes prove nothing.

    Added (special) tokens that differ are left out of proposals; an ordinary token that differs
    means another tokenizer and is an error.
    """
    target_tokens = _read_vocabulary(target.model_path)
    draft_tokens = _read_vocabulary(draft.model_path)
    if target_tokens is None or draft_tokens is None:
        return _compare_sizes(target, draft)
    end = min(
        max(target_tokens.all_ids, default=-1) + 1,
        max(draft_tokens.all_ids, default=-1) + 1,
        target.vocab_size,
        draft.vocab_size,
    )
    excluded: list[int] = []
    for token_id in range(end):
        expected = target_tokens.all_ids.get(token_id)
        found = draft_tokens.all_ids.get(token_id)
        if expected == found and expected is not None:
            continue
        if token_id in target_tokens.ordinary_ids and token_id in draft_tokens.ordinary_ids:
            raise ValueError(
                f"speculative_draft_model_path: {draft.model_path} has another vocabulary than "
                f"{target.model_path}: token id {token_id} is {found!r} there and {expected!r} in "
                "the target; STANDALONE needs a draft trained with the target's tokenizer"
            )
        excluded.append(token_id)
    return DraftVocabulary(end, tuple(excluded), target.vocab_size)


def _compare_sizes(target: ModelConfig, draft: ModelConfig) -> DraftVocabulary:
    if target.vocab_size != draft.vocab_size:
        raise ValueError(
            f"speculative_draft_model_path: vocab_size is {draft.vocab_size} in {draft.model_path} "
            f"and {target.vocab_size} in {target.model_path}, and one of them has no "
            "tokenizer.json to tell padding from another vocabulary; put the draft's "
            "tokenizer.json beside its weights"
        )
    return DraftVocabulary(target.vocab_size, (), target.vocab_size)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    all_ids: Mapping[int, str]
    ordinary_ids: frozenset[int]


def _read_vocabulary(model_path: Path) -> _Vocabulary | None:
    """The ids in tokenizer.json of the checkpoint, or beside the `.gguf` file; None without one."""
    directory = model_path if model_path.is_dir() else model_path.parent
    tokenizer_file = directory / "tokenizer.json"
    if not tokenizer_file.is_file():
        return None
    try:
        tokenizer = json.loads(tokenizer_file.read_text(encoding="utf-8"))
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            ordinary = {token_id: token for token, token_id in vocabulary.items()}
        else:  # Unigram models list [token, score] by id.
            ordinary = {token_id: entry[0] for token_id, entry in enumerate(vocabulary)}
        added = {entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens", ())}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{tokenizer_file}: not a tokenizer: {type(error).__name__}: {error}"
        ) from error
    return _Vocabulary({**ordinary, **added}, frozenset(ordinary) - frozenset(added))
