"""Which ids a draft may propose: real tokens are compared, embedding sizes are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.config.model_config import ModelConfig
from app.testing.fakes import fake_model_config
from app.workers.draft_vocabulary import DraftVocabulary, compare_vocabularies

WORDS = [f"w{i}" for i in range(10)]


def model(
    directory: Path,
    words: list[str] | None,
    *,
    vocab_size: int | None = None,
    added: dict[int, str] | None = None,
    is_unigram: bool = False,
) -> ModelConfig:
    """A model of `vocab_size` rows whose tokenizer has `words` by id, and `added` tokens."""
    directory.mkdir()
    if words is not None:
        ids: Any = {word: i for i, word in enumerate(words)}
        vocabulary = [[word, -1.0] for word in words] if is_unigram else ids
        entries = [{"id": i, "content": text} for i, text in (added or {}).items()]
        tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": entries}
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    size = vocab_size or len(words or [])
    return replace(fake_model_config(vocab_size=size, context_len=8), model_path=directory)


def compare(target: ModelConfig, draft: ModelConfig) -> DraftVocabulary:
    found = compare_vocabularies(target, draft)
    assert found.target_vocab_size == target.vocab_size
    return found


@pytest.mark.parametrize("is_unigram", [False, True])
def test_equal_vocabularies_share_every_id(tmp_path: Path, is_unigram: bool) -> None:
    target = model(tmp_path / "t", WORDS)
    draft = model(tmp_path / "d", WORDS, is_unigram=is_unigram)
    assert compare(target, draft) == DraftVocabulary(10, (), 10)


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(10, 16), (16, 10), (16, 12), (128, 256)])
def test_padding_of_the_embeddings_does_not_matter(
    tmp_path: Path, target_rows: int, draft_rows: int
) -> None:
    target = model(tmp_path / "t", WORDS, vocab_size=target_rows)
    draft = model(tmp_path / "d", WORDS, vocab_size=draft_rows)
    found = compare(target, draft)
    assert (found.num_ids, found.excluded) == (10, ())
    restricted = found.restrict(torch.full((2, draft_rows), 3.0))
    assert restricted.shape == (2, target_rows)
    assert bool((restricted[:, :10] == 3.0).all())
    assert bool((restricted[:, 10:] == -torch.inf).all())


def test_tokens_that_only_one_of_them_has_are_not_proposed(tmp_path: Path) -> None:
    longer = [*WORDS, "more", "and more"]
    target = model(tmp_path / "t", longer)
    draft = model(tmp_path / "d", WORDS, vocab_size=12)
    assert compare(target, draft).num_ids == 10
    assert compare(draft, target).num_ids == 10


def test_special_tokens_that_differ_are_left_out(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS, vocab_size=13, added={10: "<s>", 11: "<end>", 12: "<t>"})
    draft = model(tmp_path / "d", WORDS, vocab_size=13, added={10: "<s>", 11: "<eot>", 12: "<t>"})
    found = compare(target, draft)
    assert (found.num_ids, found.excluded) == (13, (11,))
    restricted = found.restrict(torch.zeros(1, 13))[0]
    assert restricted.tolist() == [0.0] * 11 + [-torch.inf] + [0.0]


def test_a_special_token_in_the_place_of_a_word_is_left_out(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS, added={4: "<pad>"})
    draft = model(tmp_path / "d", WORDS)
    assert compare(target, draft).excluded == (4,)


def test_another_word_is_another_vocabulary(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS)
    other = [*WORDS]
    other[3] = "else"
    draft = model(tmp_path / "d", other, vocab_size=64)
    with pytest.raises(ValueError, match="token id 3 is 'else' there and 'w3' in the target"):
        compare_vocabularies(target, draft)


def test_without_a_tokenizer_only_equal_sizes_are_trusted(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS)
    assert compare(target, model(tmp_path / "d", None, vocab_size=10)).num_ids == 10
    with pytest.raises(ValueError, match=r"vocab_size is 12 in .* and 10 in .*tokenizer\.json"):
        compare_vocabularies(target, model(tmp_path / "e", None, vocab_size=12))


def test_the_tokenizer_beside_a_gguf_file_is_read(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS)
    draft = model(tmp_path / "d", WORDS, vocab_size=16)
    (draft.model_path / "draft.gguf").touch()
    draft = replace(draft, model_path=draft.model_path / "draft.gguf")
    assert compare(target, draft).num_ids == 10


@pytest.mark.parametrize(
    "content", ['{"model": ', '{"model": {}}', "[]", '{"model": {"vocab": 3}}']
)
def test_a_broken_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    target, draft = model(tmp_path / "t", WORDS), model(tmp_path / "d", WORDS)
    file = draft.model_path / "tokenizer.json"
    file.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=rf"{file}: not a tokenizer"):
        compare_vocabularies(target, draft)


def test_equal_vocabularies_cost_nothing(tmp_path: Path) -> None:
    target, draft = model(tmp_path / "t", WORDS), model(tmp_path / "d", WORDS)
    logits = torch.zeros(2, 10)
    assert compare(target, draft).restrict(logits) is logits
