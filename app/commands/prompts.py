"""Where prompts come from: arguments, a file, or standard input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from app.tokenizer import Prompt


def read_prompts(arguments: Sequence[str], prompt_file: str | None, stdin: TextIO) -> list[Prompt]:
    """The prompts in order: arguments, then the file's; standard input when there are neither.

    Raises ValueError naming the file and the line at fault.
    """
    prompts: list[Prompt] = list(arguments)
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
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt-file {path}: not UTF-8 text ({error})") from None


def _parse_whole(text: str) -> list[Prompt]:
    """Piped text is one prompt, whatever its lines, unless it is made of JSON lines."""
    if _is_prompt_object(text.lstrip().split("\n", 1)[0]):
        return _parse_lines(text, "standard input", is_json_lines=True)
    stripped = text.strip()
    return [stripped] if stripped else []


def _parse_lines(text: str, source: str, *, is_json_lines: bool) -> list[Prompt]:
    """One prompt a line; blank lines are skipped."""
    # Only "\n" ends a line: splitlines would also cut at characters that prompts may hold.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
    filled = [(number, line) for number, line in lines if line]
    if is_json_lines or (filled and _is_prompt_object(filled[0][1])):
        return [_parse_object(line, f"{source}:{number}") for number, line in filled]
    return [line for _, line in filled]


def _is_prompt_object(line: str) -> bool:
    try:
        value = _parse_json(line)
    except ValueError:
        return False
    return isinstance(value, dict) and ("prompt" in value or "messages" in value)


def _parse_object(line: str, place: str) -> Prompt:
    """What a line asks for. A line that is no such object makes the file one that was not meant; a
    prompt that is no good is refused alone, by the tokenizer, and the others run."""
    try:
        value = _parse_json(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error})") from None
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise ValueError(f"{place}: must be an object with either 'prompt' or 'messages'")
    prompt: Prompt = value["prompt"] if "prompt" in value else _messages(value)
    return prompt


def _messages(value: dict[str, Any]) -> Any:
    messages = value["messages"]
    is_chat = isinstance(messages, list) and all(isinstance(m, dict) for m in messages)
    # As they are, a text or numbers would pass for a prompt of another kind.
    return messages if is_chat else value


def _parse_json(line: str) -> Any:
    try:
        return json.loads(line, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
