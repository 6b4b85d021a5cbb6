"""The token ids of a checkpoint's own tokenizer, in whichever format it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config.json_file import read_json_object
from app.loading.gguf_header import read_arrays

_TOKENIZER_JSON = "tokenizer.json"
# Each holds a vocabulary; tokenizer_config.json alone holds none.
_OTHER_FILES = (
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "source.spm",
)
_GGUF_TOKENS, _GGUF_KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
# Token types of llama.cpp: normal, unused (padding of the embedding) and byte.
_NORMAL, _UNUSED, _BYTE = 1, 5, 6


class NoTokenizerError(Exception):
    """A checkpoint has no tokenizer that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class TokenizerIds:
    """`all_ids`: id -> token. `ordinary_ids`: those that are no added (special) tokens."""

    all_ids: Mapping[int, str]
    ordinary_ids: frozenset[int]


def read_tokenizer_ids(model_path: Path) -> TokenizerIds:
    """The ids of the tokenizer in a checkpoint directory or a `.gguf` file, or beside the latter.

    Raises ValueError naming a tokenizer.json that is none, and NoTokenizerError.
    """
    directory = model_path if model_path.is_dir() else model_path.parent
    if model_path.is_file():
        found = _read_gguf(model_path)
        if found is not None:
            return found
    if (directory / _TOKENIZER_JSON).is_file():
        return _read_tokenizer_json(directory / _TOKENIZER_JSON)
    if any(any(directory.glob(pattern)) for pattern in _OTHER_FILES):
        return _read_with_transformers(directory)
    raise NoTokenizerError("it has no tokenizer file")


def _read_gguf(path: Path) -> TokenizerIds | None:
    try:
        arrays = read_arrays(path, (_GGUF_TOKENS, _GGUF_KINDS))
    except (OSError, ValueError):
        # Whoever loads the weights says what is wrong with the file.
        return None
    tokens = arrays.get(_GGUF_TOKENS)
    if not tokens:
        return None
    kinds = arrays.get(_GGUF_KINDS, ())
    if len(kinds) != len(tokens):
        kinds = (_NORMAL,) * len(tokens)
    pairs = list(enumerate(zip(tokens, kinds, strict=True)))
    return TokenizerIds(
        {token_id: str(token) for token_id, (token, kind) in pairs if kind != _UNUSED},
        frozenset(token_id for token_id, (_, kind) in pairs if kind in (_NORMAL, _BYTE)),
    )


def _read_tokenizer_json(path: Path) -> TokenizerIds:
    try:
        tokenizer = read_json_object(path)
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            ordinary = {token_id: token for token, token_id in vocabulary.items()}
        else:  # Unigram models list [token, score] by id.
            ordinary = {token_id: entry[0] for token_id, entry in enumerate(vocabulary)}
        added = {entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens", ())}
        found = {**ordinary, **added}
        end = max(found, default=-1)
        if not isinstance(end, int):
            raise TypeError(f"ids must be whole numbers, got {end!r}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: not a tokenizer: {type(error).__name__}: {reason}") from error
    return TokenizerIds(found, frozenset(ordinary) - frozenset(added))


def _read_with_transformers(directory: Path) -> TokenizerIds:
    from transformers import AutoTokenizer

    try:
        # Comparing must not run code of a checkpoint.
        tokenizer: Any = AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=False, local_files_only=True
        )
        all_ids = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        added = frozenset(tokenizer.get_added_vocab().values())
    # transformers raises whatever its parsers meet in a broken or unknown file.
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise NoTokenizerError(f"its tokenizer cannot be read: {reason}") from error
    if not all_ids:
        raise NoTokenizerError("its tokenizer has no tokens")
    return TokenizerIds(all_ids, frozenset(all_ids) - added)
