"""Finds the algorithms of plugins: entry points and the `plugins` of a configuration."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from app.config.server_args import ServerArgs
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistration, AlgorithmRegistry

ENTRY_POINT_GROUP = "draftscope.speculative_algorithms"


def build_algorithm_registry(server_args: ServerArgs) -> AlgorithmRegistry:
    """Built-ins, then installed entry points, then `plugins` (`"package.module:attribute"`)."""
    registry = builtin_algorithms()
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        where = f"entry point {entry_point.name} ({entry_point.value})"
        registry = _add(registry, where, entry_point.value)
    for plugin in server_args.plugins:
        registry = _add(registry, f"plugins: {plugin!r}", plugin)
    return registry


def _add(registry: AlgorithmRegistry, where: str, reference: str) -> AlgorithmRegistry:
    module_name, separator, attribute = reference.partition(":")
    if not separator or not attribute:
        raise ValueError(f'{where}: write it as "package.module:attribute"')
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{where}: {module_name} cannot be imported: {error}") from error
    registration = getattr(module, attribute, None)
    if not isinstance(registration, AlgorithmRegistration):
        raise ValueError(
            f"{where}: {attribute} is {type(registration).__name__}, not an AlgorithmRegistration; "
            "make one with SpeculativeAlgorithm.register"
        )
    try:
        return registry.with_registration(registration)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
