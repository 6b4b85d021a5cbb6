"""`draftscope algorithms`: what can speculate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from app.commands.engine_options import ConfigInputs, ConfiguredCommand
from app.commands.output import print_json, print_table

if TYPE_CHECKING:
    from app.config.server_args import ServerArgs

# A record needs a model; which algorithms exist does not depend on it.
ANY_MODEL = "unset"


@click.command(cls=ConfiguredCommand)
def algorithms(inputs: ConfigInputs) -> None:
    """Built-in algorithms and those of plugins, and what each needs."""
    server_args = _server_args(inputs)
    from app.speculative.builtin import builtin_algorithms
    from app.speculative.plugins import build_algorithm_registry

    built_in = builtin_algorithms().names
    known: list[Mapping[str, object]] = [
        {
            "name": registration.name,
            "needs": ["speculative_draft_model_path"] if registration.has_draft_model else [],
            "is_plugin": registration.name not in built_in,
            "summary": registration.summary,
        }
        for registration in build_algorithm_registry(server_args)
    ]
    if inputs.is_json:
        print_json(known)
        return
    print_table(
        ["name", "from", "draft model", "summary"],
        [
            [
                str(entry["name"]),
                "plugin" if entry["is_plugin"] else "built in",
                "needed" if entry["needs"] else "none",
                str(entry["summary"]),
            ]
            for entry in known
        ],
    )


def _server_args(inputs: ConfigInputs) -> ServerArgs:
    from dataclasses import replace

    has_model = "model_path" in inputs.flags or inputs.config_file is not None
    if not has_model:
        inputs = replace(inputs, flags={"model_path": ANY_MODEL, **inputs.flags})
    return inputs.server_args()
