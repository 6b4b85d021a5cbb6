"""Which ids a draft may propose: real tokens are compared, embedding sizes are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
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


def own_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without those of transformers."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("app.")]


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


def test_without_a_tokenizer_only_equal_sizes_are_trusted_and_never_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = model(tmp_path / "t", WORDS)
    draft = model(tmp_path / "d", None, vocab_size=10)
    assert compare(target, draft).num_ids == 10
    (warning,) = own_warnings(caplog)
    for part in (str(target.model_path), "it has no tokenizer file", "tokenizer.json beside its"):
        assert part in warning
    assert f"({draft.model_path}: it has no tokenizer file)" in warning
    with pytest.raises(ValueError, match=r"vocab_size is 12 in .* and 10 in .*tokenizer\.json"):
        compare_vocabularies(target, model(tmp_path / "e", None, vocab_size=12))


def test_a_tokenizer_that_cannot_be_read_counts_as_none_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = model(tmp_path / "t", WORDS)
    draft = model(tmp_path / "d", None, vocab_size=10)
    (draft.model_path / "tokenizer.model").write_bytes(b"no sentencepiece model")
    assert compare(target, draft).num_ids == 10
    (warning,) = own_warnings(caplog)
    assert f"{draft.model_path}: its tokenizer cannot be read: " in warning
    assert "\n" not in warning


def write_vocab_json(directory: Path, words: list[str]) -> None:
    """The files of a GPT-2 tokenizer, which has no tokenizer.json."""
    vocab = {word: i for i, word in enumerate(words)}
    (directory / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    settings = {"tokenizer_class": "GPT2Tokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2"}), "utf-8")


def test_tokenizers_of_other_formats_are_compared_too(tmp_path: Path) -> None:
    target, other = model(tmp_path / "t", WORDS), [*WORDS]
    other[3] = "else"
    for name, words in (("same", WORDS), ("other", other)):
        draft = model(tmp_path / name, None, vocab_size=10)
        write_vocab_json(draft.model_path, words)
        if words == WORDS:
            assert compare(target, draft).num_ids == 10
        else:
            with pytest.raises(ValueError, match="token id 3 is 'else' there and 'w3'"):
                compare_vocabularies(target, draft)


def write_gguf(path: Path, words: list[str], kinds: list[int]) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * len(words))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_the_tokens_inside_a_gguf_file_are_its_tokenizer(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS, vocab_size=16, added={10: "<s>", 11: "<end>"})
    directory = tmp_path / "d"
    # Another model's tokenizer lies beside it.
    beside = model(directory, [f"x{i}" for i in range(10)], vocab_size=16)
    draft = replace(beside, model_path=directory / "draft.gguf")
    words = [*WORDS, "<s>", "<eot>", "[PAD12]"]
    write_gguf(draft.model_path, words, [1] * 10 + [3, 3, 5])
    assert compare(target, draft) == DraftVocabulary(12, (11,), 16)
    write_gguf(draft.model_path, ["else", *words[1:]], [1] * 10 + [3, 3, 5])
    with pytest.raises(ValueError, match="token id 0 is 'else' there and 'w0' in the target"):
        compare_vocabularies(target, draft)


def test_the_tokenizer_beside_a_gguf_file_is_read(tmp_path: Path) -> None:
    target = model(tmp_path / "t", WORDS)
    draft = model(tmp_path / "d", WORDS, vocab_size=16)
    (draft.model_path / "draft.gguf").touch()
    draft = replace(draft, model_path=draft.model_path / "draft.gguf")
    assert compare(target, draft).num_ids == 10


@pytest.mark.parametrize(
    "content",
    [
        '{"model": ',
        '{"model": {}}',
        "[]",
        "[" * 100_000,
        '{"model": {"vocab": 3}}',
        '{"model": {"vocab": {"a": "x"}}}',
    ],
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
