"""Which token ids a separately trained draft may propose to its target."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from app.config.model_config import ModelConfig
from app.workers.tokenizer_ids import NoTokenizerError, TokenizerIds, read_tokenizer_ids

_logger = logging.getLogger(__name__)


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
    target_tokens, draft_tokens = _read_ids(target), _read_ids(draft)
    if isinstance(target_tokens, str) or isinstance(draft_tokens, str):
        reasons = [found for found in (target_tokens, draft_tokens) if isinstance(found, str)]
        return _compare_sizes(target, draft, "; ".join(reasons))
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


def _read_ids(model: ModelConfig) -> TokenizerIds | str:
    """The ids of the model's tokenizer, or why there are none."""
    try:
        return read_tokenizer_ids(model.model_path)
    except NoTokenizerError as error:
        return f"{model.model_path}: {error}"


def _compare_sizes(target: ModelConfig, draft: ModelConfig, reason: str) -> DraftVocabulary:
    remedy = "put the model's own tokenizer.json beside its weights to have the tokens compared"
    if target.vocab_size != draft.vocab_size:
        raise ValueError(
            f"speculative_draft_model_path: vocab_size is {draft.vocab_size} in {draft.model_path} "
            f"and {target.vocab_size} in {target.model_path}, and no tokenizer tells padding from "
            f"another vocabulary ({reason}); {remedy}"
        )
    _logger.warning(
        "draft %s and target %s are taken to have one vocabulary because both have %d tokens "
        "(%s); %s",
        draft.model_path,
        target.model_path,
        target.vocab_size,
        reason,
        remedy,
    )
    return DraftVocabulary(target.vocab_size, (), target.vocab_size)
