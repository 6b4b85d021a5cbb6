"""Where prompts come from: arguments, a file, or standard input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

# Plain text, or the messages of a chat, each with `role` and `content`.
PromptInput = str | list[dict[str, str]]


def read_prompts(
    arguments: Sequence[str], prompt_file: str | None, stdin: TextIO
) -> list[PromptInput]:
    """The prompts in order: arguments, then the file's; standard input when there are neither.

    Raises ValueError naming the file and the line at fault.
    """
    prompts: list[PromptInput] = list(arguments)
    if prompt_file == "-":
        prompts += _parse_lines(stdin.read(), "standard input", is_json_lines=False)
    elif prompt_file is not None:
        path = Path(prompt_file)
        prompts += _parse_lines(_read(path), prompt_file, is_json_lines=path.suffix == ".jsonl")
    elif not prompts:
        prompts += _parse_whole(stdin.read())
    if not prompts:
        raise ValueError(
            "no prompt: give one as an argument, with --prompt-file or on standard input"
        )
    return prompts


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"--prompt-file {path}: no such file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt-file {path}: not UTF-8 text ({error})") from None


def _parse_whole(text: str) -> list[PromptInput]:
    """Piped text is one prompt, whatever its lines, unless it is made of JSON lines."""
    if _is_prompt_object(text.lstrip().split("\n", 1)[0]):
        return _parse_lines(text, "standard input", is_json_lines=True)
    stripped = text.strip()
    return [stripped] if stripped else []


def _parse_lines(text: str, source: str, *, is_json_lines: bool) -> list[PromptInput]:
    """One prompt a line; blank lines are skipped."""
    # Only "\n" ends a line: splitlines would also cut at characters that prompts may hold.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
    filled = [(number, line) for number, line in lines if line]
    if is_json_lines or (filled and _is_prompt_object(filled[0][1])):
        return [_parse_object(line, f"{source}:{number}") for number, line in filled]
    return [line for _, line in filled]


def _is_prompt_object(line: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and ("prompt" in value or "messages" in value)


def _parse_object(line: str, place: str) -> PromptInput:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error})") from None
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise ValueError(f"{place}: must be an object with either 'prompt' or 'messages'")
    if "prompt" in value:
        if not isinstance(value["prompt"], str):
            raise ValueError(f"{place}: 'prompt' must be a text")
        return value["prompt"]
    return _parse_messages(value["messages"], place)


def _parse_messages(messages: object, place: str) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{place}: 'messages' must be a list that is not empty")
    for message in messages:
        if not (
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise ValueError(f"{place}: each message needs the texts 'role' and 'content'")
    return [{"role": message["role"], "content": message["content"]} for message in messages]
