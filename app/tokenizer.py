"""The target's tokenizer: prompts and chats to token ids, token ids to text."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, cast

from app.config.model_path import resolve_model_path
from app.config.server_args import ServerArgs
from app.scheduling.detokenizer import IncrementalDetokenizer

_logger = logging.getLogger(__name__)

# `role` and `content`: a text, or text parts as `{"type": "text", "text": ...}`.
Message = Mapping[str, object]
# Text (the chat template is applied unless `raw`), chat messages, or token ids as they are.
Prompt = str | Sequence[Message] | Sequence[int]


class Tokenizer:
    """Wraps a transformers tokenizer; the chat template is applied by default."""

    def __init__(self, tokenizer: Any, chat_template: str | None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template

    @property
    def eos_token_ids(self) -> frozenset[int]:
        eos = self._tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset([eos])

    def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        """Token ids of a prompt. Raises ValueError, and nothing else, for what is no prompt, is
        empty, or does not fit the chat template."""
        checked = _checked(prompt)
        if isinstance(checked, str):
            # A model without a template is a base model: its prompts are plain text.
            if raw or self._chat_template is None:
                ids = self._tokenize(checked, add_special_tokens=True)
            else:
                ids = self._apply_template([{"role": "user", "content": checked}])
        elif isinstance(checked[0], int):
            ids = checked
        else:
            ids = self._apply_template(checked)
        if not ids:
            raise ValueError("the prompt is empty: it has no tokens")
        return ids

    def _apply_template(self, messages: list[dict[str, object]]) -> list[int]:
        if self._chat_template is None:
            raise ValueError(
                "messages need a chat template and the tokenizer has none; "
                "set chat_template, or pass text with raw"
            )
        try:
            text = _render(self._tokenizer, self._chat_template, messages)
        # A template is a program: it refuses messages with whatever it likes.
        except Exception as error:
            raise ValueError(
                f"the chat template refuses the messages: {' '.join(str(error).split())}"
            ) from error
        # The template writes the special tokens itself.
        return self._tokenize(text, add_special_tokens=False)

    def _tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the prompt is not valid Unicode: it holds {text[error.start]!r}, half of a "
                "surrogate pair or a byte that is not UTF-8"
            ) from None
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return list(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def detokenizer(self) -> IncrementalDetokenizer:
        """A fresh incremental detokenizer for one request."""
        return IncrementalDetokenizer(self.decode)


def load_tokenizer(server_args: ServerArgs) -> Tokenizer | NoTokenizer:
    """The tokenizer of `tokenizer_path`, or none when `skip_tokenizer_init` is set.

    Raises ValueError naming the field and the path when there is none to read, and when the chat
    template is not valid Jinja.
    """
    if server_args.skip_tokenizer_init:
        return NoTokenizer()
    path, field = _tokenizer_path(server_args)
    tokenizer = _read_tokenizer(path, field, server_args.trust_remote_code)
    if server_args.chat_template is not None:
        template: str | None = _read_chat_template(server_args.chat_template)
        origin = "chat_template"
    else:
        origin = f"the chat template of {path}"
        try:
            # Of several named templates this takes the default one.
            template = tokenizer.get_chat_template() if tokenizer.chat_template else None
        except Exception as error:
            raise ValueError(f"{origin}: {' '.join(str(error).split())}") from error
    if template is not None:
        _check_syntax(tokenizer, template, origin)
    return Tokenizer(tokenizer, template)


def _tokenizer_path(server_args: ServerArgs) -> tuple[Path, str]:
    """Where the tokenizer lies, and the field that says so."""
    is_own = server_args.tokenizer_path not in (None, server_args.model_path)
    field = "tokenizer_path" if is_own else "model_path"
    path = resolve_model_path(
        server_args.tokenizer_path or server_args.model_path,
        # The revision is one of the target's repository.
        None if is_own else server_args.revision,
        server_args.download_dir,
        field=field,
    )
    return path, field


def _read_tokenizer(path: Path, field: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    where = {"gguf_file": path.name} if path.is_file() else {}
    directory = path.parent if path.is_file() else path
    try:
        return AutoTokenizer.from_pretrained(
            str(directory), trust_remote_code=trust_remote_code, **where
        )
    # Broken files end in errors of many kinds, and a checkpoint may bring its own code.
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(
            f"{field}: no tokenizer can be read from {path}; mend its files, or give another "
            f"directory by tokenizer_path: {reason}"
        ) from error


def _render(tokenizer: Any, chat_template: str, messages: list[dict[str, object]]) -> str:
    text = tokenizer.apply_chat_template(
        messages, chat_template=chat_template, tokenize=False, add_generation_prompt=True
    )
    assert isinstance(text, str), "one chat was given, and no tokens were asked for"
    return text


def _check_syntax(tokenizer: Any, chat_template: str, origin: str) -> None:
    from jinja2 import TemplateSyntaxError

    # transformers compiles a template where it renders it.
    try:
        _render(tokenizer, chat_template, [{"role": "user", "content": ""}])
    except TemplateSyntaxError as error:
        raise ValueError(
            f"{origin}: line {error.lineno} is not valid Jinja: {error.message}"
        ) from error
    # Well formed, and this chat is not one that it takes; others may be.
    except Exception as error:
        _logger.debug("%s refuses an empty message: %s", origin, error)


def _checked(prompt: Prompt) -> str | list[dict[str, object]] | list[int]:
    """The prompt, if it is one: it may come from a file. Contents become texts, ids ints."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise ValueError(
            "a prompt is a text, a list of messages or a list of token ids, "
            f"got {_shortened(prompt)}"
        )
    if not prompt:
        raise ValueError("the prompt is empty: it has no tokens")
    if isinstance(prompt[0], Mapping):
        return [_message(message) for message in prompt]
    for token_id in prompt:
        if not isinstance(token_id, Integral) or isinstance(token_id, bool):
            raise ValueError(f"token ids must be integers, got {_shortened(token_id)}")
    return [int(cast("int", token_id)) for token_id in prompt]


def _message(message: object) -> dict[str, object]:
    """A message whose content is a text; its other keys are the template's business."""
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise ValueError(f"a message needs the keys role and content, got {_shortened(message)}")
    if not isinstance(message["role"], str):
        raise ValueError(f"the role of a message must be a text, got {_shortened(message['role'])}")
    return {**message, "content": _content(message["content"])}


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) and content else [content]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ]
    if len(texts) < len(parts):
        raise ValueError(
            'the content of a message must be a text or a list of {"type": "text", "text": ...}, '
            f"got {_shortened(content)}"
        )
    return "".join(texts)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class NoTokenizer:
    """Stands in when `skip_tokenizer_init` is set: prompts are token ids and texts are empty."""

    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        checked = _checked(prompt)
        if isinstance(checked, str) or not isinstance(checked[0], int):
            raise ValueError("skip_tokenizer_init is set: prompts must be lists of token ids")
        return checked

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def detokenizer(self) -> None:
        return None


def _read_chat_template(chat_template: str) -> str:
    if "{" in chat_template:
        return chat_template
    path = Path(chat_template)
    if not path.is_file():
        raise ValueError(f"chat_template: {chat_template} is neither a file nor a Jinja template")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"chat_template: {chat_template} cannot be read: {error}") from error
