"""Finds the algorithms of plugins: entry points and the `plugins` of a configuration."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from app.config.server_args import ServerArgs
from app.speculative.builtin import builtin_algorithms
from app.speculative.plugin_guard import one_line
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
    try:
        return registry.with_registration(_load(reference))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    # A registration may hold anything where its name should be.
    except Exception as error:
        raise ValueError(f"{where}: not an algorithm: {one_line(error)}") from error


def _load(reference: str) -> AlgorithmRegistration:
    # An entry point may end in the extras that it needs.
    module_name, _, attribute = reference.partition("[")[0].strip().partition(":")
    is_absolute = all(part.isidentifier() for part in module_name.split("."))
    if not is_absolute or not attribute.isidentifier():
        raise ValueError('write it as "package.module:attribute"')
    try:
        module = importlib.import_module(module_name)
    # Whatever a module runs when it is imported, it is not for this program to judge.
    except (Exception, SystemExit) as error:
        raise ValueError(f"{module_name} cannot be imported: {_import_error(error)}") from error
    try:
        registration = getattr(module, attribute, None)
    except Exception as error:
        raise ValueError(f"{attribute} cannot be read: {one_line(error)}") from error
    if not isinstance(registration, AlgorithmRegistration):
        raise ValueError(
            f"{attribute} is {type(registration).__name__}, not an AlgorithmRegistration; "
            "make one with SpeculativeAlgorithm.register"
        )
    return registration


def _import_error(error: BaseException) -> str:
    # The message of a failed import says all by itself.
    return " ".join(str(error).split()) if isinstance(error, ImportError) else one_line(error)
