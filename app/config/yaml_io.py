"""From files, environment and command line to one `ServerArgs`, lowest layer first."""

from __future__ import annotations

import logging
import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from app.config.model_path import CACHE_VARIABLE
from app.config.names import nearest_name, unknown_name_message
from app.config.provenance import environment_source, flag_source, set_source
from app.config.server_args import ServerArgs
from app.config.strict_yaml import parse_scalar, read_yaml_mapping

_logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "DRAFTSCOPE_"
EXTENDS = "extends"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Values of one place, and the name of the place for each."""

    values: Mapping[str, object]
    sources: Mapping[str, str]


def load_server_args(
    config_file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    settings: Sequence[str] = (),
) -> ServerArgs:
    """The record of a run: defaults, file, environment, flags, `--set`, each over the one before.

    `flags`: field -> value; None and () mean that the flag was not given. `settings`: `key=value`.
    A higher layer replaces a field's whole value: lists and mappings do not merge.
    Raises ValueError (one line) naming the field, its source and what would be right.
    """
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for layer in (
        *_file_layers(config_file),
        _environment_layer(environ),
        _flag_layer(flags),
        _setting_layer(settings),
    ):
        values |= layer.values
        sources |= layer.sources
    return ServerArgs.from_sources(values, sources)


def _file_layers(config_file: Path | None) -> list[_Layer]:
    """The file and those it extends, base first."""
    layers: list[_Layer] = []
    chain: list[Path] = []
    path = config_file
    while path is not None:
        if any(_is_same_file(path, seen) for seen in chain):
            cycle = " -> ".join(str(item) for item in (*chain, path))
            raise ValueError(f"{chain[-1]}: {EXTENDS}: files extend each other: {cycle}")
        if chain and not path.is_file():
            raise ValueError(f"{chain[-1]}: {EXTENDS}: {path} does not exist")
        chain.append(path)
        values = read_yaml_mapping(path)
        base = values.pop(EXTENDS, None)
        if base is not None and not isinstance(base, str):
            raise ValueError(f"{path}: {EXTENDS}: must be the path of one file, got {base!r}")
        layers.append(_Layer(values=values, sources=dict.fromkeys(values, str(path))))
        path = None if base is None else Path(os.path.normpath(path.parent / base))
    return layers[::-1]


def _is_same_file(left: Path, right: Path) -> bool:
    return left.resolve() == right.resolve()


def _environment_layer(environ: Mapping[str, str]) -> _Layer:
    """`DRAFTSCOPE_<FIELD>`; an empty variable counts as unset."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CACHE_VARIABLE:
            continue
        field = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if field not in ServerArgs.model_fields:
            nearest = nearest_name(field, ServerArgs.model_fields)
            hint = f"; did you mean {ENVIRONMENT_PREFIX}{nearest.upper()}?" if nearest else ""
            _logger.warning("%s is set but names no field%s", variable, hint)
        elif environ[variable] != "":
            sources[field] = environment_source(variable)
            values[field] = _parse(field, environ[variable], sources[field])
    return _Layer(values=values, sources=sources)


def _flag_layer(flags: Mapping[str, object]) -> _Layer:
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    return _Layer(values=given, sources={field: flag_source(field) for field in given})


def _setting_layer(settings: Sequence[str]) -> _Layer:
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        field = key.strip().replace("-", "_")
        if not separator or not field:
            raise ValueError(f"--set {setting}: write it as key=value")
        source = set_source(field)
        if field not in ServerArgs.model_fields:
            raise ValueError(
                f"{source}: {unknown_name_message('field', field, ServerArgs.model_fields)}"
            )
        sources[field] = source
        values[field] = _parse(field, text, source)
    return _Layer(values=values, sources=sources)


def _parse(field: str, text: str, source: str) -> object:
    annotation = ServerArgs.model_fields[field].annotation
    return parse_scalar(text, source, is_text=_holds_text(annotation))


def _holds_text(annotation: Any) -> bool:
    """Whether a field holds text or nothing, by its type."""
    if get_origin(annotation) is Literal:
        return True
    if hasattr(annotation, "__metadata__"):
        return _holds_text(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return False
    members = [member for member in get_args(annotation) if member is not type(None)]
    if members:
        return all(_holds_text(member) for member in members)
    return annotation is str
