"""Small tokenizers whose vocabulary has exactly as many tokens as a tiny model has rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BOS, EOS, UNKNOWN = "<|bos|>", "<|eos|>", "<|unknown|>"
SPECIAL_TOKENS = (BOS, EOS, UNKNOWN, "<|system|>", "<|user|>", "<|assistant|>")
BOS_ID, EOS_ID = 0, 1
_NUM_BYTES = 256
# Below this a vocabulary cannot hold every byte, and holds single characters instead.
MIN_BYTE_LEVEL_SIZE = len(SPECIAL_TOKENS) + _NUM_BYTES
_CHARACTERS = " etaoinshrdlucmfwypvbgkjqxz.,?!'\n0123456789ETAOINSHRDLUCMFWYPVBGKJQXZ-:;()\"/+=*_"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# What byte-level vocabularies learn their merges from.
_TEXT = (
    "The draft proposes a few tokens, and the target verifies all of them in one forward.",
    "What is accepted costs nothing; what is refused is replaced by the target's own token.",
    "What is the capital of France? The capital of France is Paris.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "One small step, one more small step, and the same small step again and again.",
)


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Save a tokenizer of `vocab_size` tokens with a chat template to `directory`.

    From `MIN_BYTE_LEVEL_SIZE` tokens on it is a byte-level BPE, which any text survives; below, it
    knows single characters only. Ids 0 and 1 are BOS and EOS.
    """
    if vocab_size < len(SPECIAL_TOKENS) + 1:
        raise ValueError(
            f"vocab_size: {vocab_size} is too small; there are {len(SPECIAL_TOKENS)} special tokens"
        )
    is_byte_level = vocab_size >= MIN_BYTE_LEVEL_SIZE
    tokenizer = _byte_level(vocab_size) if is_byte_level else _characters(vocab_size)
    wrap: Any = PreTrainedTokenizerFast
    wrap(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        # Tokenizers of some families add a token of their own when none is named.
        pad_token=EOS,
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


def _byte_level(vocab_size: int) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer = _with_bytes(Tokenizer(models.BPE()))
    tokenizer.train_from_iterator(_TEXT, trainer)
    # A few lines give a few merges; tokens that no text has fill the rest.
    tokenizer.add_tokens([f"<{i}>" for i in range(vocab_size - tokenizer.get_vocab_size())])
    return tokenizer


def _with_bytes(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _characters(vocab_size: int) -> Tokenizer:
    tokens = [*SPECIAL_TOKENS, *_CHARACTERS]
    tokens += [f"<{i}>" for i in range(vocab_size - len(tokens))]
    vocabulary = {token: i for i, token in enumerate(tokens[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
