"""YAML in which a mistake is an error: duplicate keys, wrong top level, unreadable file."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

_NULLS = ("", "~", "null", "Null", "NULL")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate and non-string keys, and values that contain themselves."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open_anchors: list[str | None] = []

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        # A date or a number that cannot be one. The constructors tell no place, and only some of
        # them raise ValueError.
        except Exception as error:
            kind = node.tag.rpartition(":")[2]
            reason = f"{error}; " if isinstance(error, ValueError) else ""
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{reason}{node.value!r} is no {kind}; quote it where it is meant as text",
                node.start_mark,
            ) from None

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and event.anchor in self._open_anchors:
            raise yaml.composer.ComposerError(
                None, None, f"*{event.anchor} contains itself", event.start_mark
            )
        if is_alias:
            return super().compose_node(parent, index)
        self._open_anchors.append(event.anchor)
        try:
            return super().compose_node(parent, index)
        finally:
            self._open_anchors.pop()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} must be a string", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _load(text: str, origin: str) -> object:
    try:
        # The loader derives from SafeLoader: no tag can run code.
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{origin}{place}: {error.problem or 'not valid YAML'}") from None
    except RecursionError:
        raise ValueError(f"{origin}: not valid YAML: it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{origin}: not valid YAML: {' '.join(str(error).split())}") from None


def read_yaml_mapping(path: Path) -> dict[str, object]:
    """The top-level mapping of a YAML file; an empty file is an empty mapping.

    Raises ValueError naming the file, and the line where there is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    content = _load(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(
            f"{path}: must hold `field: value` lines, got a {type(content).__name__} at top level"
        )
    return content


def parse_scalar(text: str, origin: str, *, is_text: bool) -> object:
    """A value typed as YAML would type it (`16` an int, `[a, b]` a list, `null` None).

    `is_text`: the field holds text, so that `1234567`, `2024-01-01` or `yes` stay what they are.
    """
    if text.strip() in _NULLS:
        return None
    if not is_text:
        return _load(text, origin)
    try:
        value = _load(text, origin)
    except ValueError:
        return text
    return value if isinstance(value, str) else text
