"""The target's tokenizer: prompts and chats to token ids, token ids to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.config.model_path import resolve_model_path
from app.config.server_args import ServerArgs
from app.scheduling.detokenizer import IncrementalDetokenizer

Message = Mapping[str, str]
# Text (the chat template is applied unless `raw`), chat messages, or token ids as they are.
Prompt = str | Sequence[Message] | Sequence[int]


class Tokenizer:
    """Wraps a transformers tokenizer; the chat template is applied by default."""

    def __init__(self, tokenizer: Any, chat_template: str | None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template or tokenizer.chat_template

    @property
    def eos_token_ids(self) -> frozenset[int]:
        eos = self._tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset([eos])

    def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        """Token ids of a prompt. Raises ValueError for an empty one, or a chat without template."""
        if isinstance(prompt, str):
            # A model without a template is a base model: its prompts are plain text.
            if raw or self._chat_template is None:
                ids = self._tokenizer(prompt)["input_ids"]
            else:
                ids = self._apply_template([{"role": "user", "content": prompt}])
        elif prompt and isinstance(prompt[0], int):
            ids = list(prompt)
        else:
            ids = self._apply_template(list(prompt))
        if not ids:
            raise ValueError("the prompt is empty: it has no tokens")
        return list(ids)

    def _apply_template(self, messages: list[Any]) -> list[int]:
        if self._chat_template is None:
            raise ValueError(
                "messages need a chat template and the tokenizer has none; "
                "set chat_template, or pass text with raw"
            )
        for message in messages:
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise ValueError(f"a message needs the keys role and content, got {message!r}")
        text = self._tokenizer.apply_chat_template(
            messages,
            chat_template=self._chat_template,
            tokenize=False,
            add_generation_prompt=True,
        )
        # The template writes the special tokens itself.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def detokenizer(self) -> IncrementalDetokenizer:
        """A fresh incremental detokenizer for one request."""
        return IncrementalDetokenizer(self.decode)


def load_tokenizer(server_args: ServerArgs) -> Tokenizer | NoTokenizer:
    """The tokenizer of `tokenizer_path`, or none when `skip_tokenizer_init` is set."""
    if server_args.skip_tokenizer_init:
        return NoTokenizer()
    from transformers import AutoTokenizer

    name = server_args.tokenizer_path or server_args.model_path
    path = resolve_model_path(name, server_args.revision, server_args.download_dir)
    where = {"gguf_file": path.name} if path.is_file() else {}
    directory = path.parent if path.is_file() else path
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=server_args.trust_remote_code, **where
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"tokenizer_path: no tokenizer can be read from {path}: {error}"
        ) from error
    return Tokenizer(tokenizer, _read_chat_template(server_args.chat_template))


class NoTokenizer:
    """Stands in when `skip_tokenizer_init` is set: prompts are token ids and texts are empty."""

    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        if isinstance(prompt, str) or not prompt or not isinstance(prompt[0], int):
            raise ValueError("skip_tokenizer_init is set: prompts must be lists of token ids")
        return [int(token) for token in prompt if isinstance(token, int)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def detokenizer(self) -> None:
        return None


def _read_chat_template(chat_template: str | None) -> str | None:
    if chat_template is None or "{" in chat_template:
        return chat_template
    path = Path(chat_template)
    if not path.is_file():
        raise ValueError(f"chat_template: {chat_template} is neither a file nor a Jinja template")
    return path.read_text(encoding="utf-8")
