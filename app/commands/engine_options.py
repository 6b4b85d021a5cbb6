"""A command that takes a configuration: --config, --set, --json and a flag for every field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.commands.failures import ReportingCommand
from app.commands.output import configure_logging

if TYPE_CHECKING:
    from app.config.server_args import ServerArgs
    from app.containers import ApplicationContainer

# Spellings that SGLang accepts besides the field's own.
ALIASES = (
    ("model_path", "--model"),
    ("speculative_draft_model_path", "--speculative-draft-model"),
)
FIELD_PREFIX = "field_"


@dataclass(frozen=True, slots=True)
class ConfigInputs:
    """What the command line says about the configuration."""

    config_file: Path | None
    flags: Mapping[str, object]
    settings: tuple[str, ...]
    is_json: bool

    @property
    def is_given(self) -> bool:
        return self.config_file is not None or bool(self.flags) or bool(self.settings)

    def server_args(self) -> ServerArgs:
        """The record as configured, before any rule; logging follows its level."""
        from app.config.yaml_io import load_server_args

        server_args = load_server_args(self.config_file, os.environ, self.flags, self.settings)
        configure_logging(server_args.log_level)
        return server_args

    def application(self) -> ApplicationContainer:
        """The container of this run."""
        from app.containers import ApplicationContainer

        given = {} if self.config_file is None else {"config_file": self.config_file}
        application = ApplicationContainer(
            environ=dict(os.environ), flags=dict(self.flags), settings=self.settings, **given
        )
        configure_logging(application.server_args().log_level)
        return application


class ConfiguredCommand(ReportingCommand):
    """Passes one `ConfigInputs` as `inputs`. The fields are read when the command itself runs, so
    that `draftscope --help` imports nothing heavy."""

    @cached_property
    def _config_options(self) -> list[click.Parameter]:
        return [*_common_options(), *_field_options()]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        return [*own[:-1], *self._config_options, *own[-1:]]  # --help stays last

    def invoke(self, ctx: click.Context) -> Any:
        given = {
            name.removeprefix(FIELD_PREFIX): ctx.params.pop(name)
            for name in list(ctx.params)
            if name.startswith(FIELD_PREFIX)
        }
        ctx.params["inputs"] = ConfigInputs(
            config_file=ctx.params.pop("config_file"),
            flags={name: value for name, value in given.items() if value not in (None, ())},
            settings=ctx.params.pop("settings"),
            is_json=ctx.params.pop("is_json"),
        )
        return super().invoke(ctx)


def _common_options() -> list[click.Option]:
    return [
        click.Option(
            ["--config", "config_file"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="YAML configuration.",
        ),
        click.Option(
            ["--set", "settings"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Set one field; may be repeated and beats flags.",
        ),
        click.Option(
            ["--json", "is_json"],
            is_flag=True,
            help="Machine-readable answer on standard output.",
        ),
    ]


def _field_options() -> list[click.Option]:
    from app.config.server_args import ServerArgs

    schema = ServerArgs.model_json_schema()
    return [_field_option(name, entry) for name, entry in schema["properties"].items()]


def _field_option(name: str, entry: Mapping[str, Any]) -> click.Option:
    """Values go through as text: the record itself validates them, so that an error names the same
    choices wherever a value comes from."""
    spellings = [f"--{name.replace('_', '-')}"]
    spellings += [alias for field, alias in ALIASES if field == name]
    parameter = f"{FIELD_PREFIX}{name}"
    text = str(entry.get("description", ""))
    if entry.get("type") == "boolean":
        spellings[0] += f"/--no-{name.replace('_', '-')}"
        return click.Option([*spellings, parameter], default=None, help=text)
    if entry.get("default") not in (None, [], {}):
        text += f"  [default: {entry['default']}]"
    return click.Option(
        [*spellings, parameter],
        multiple=entry.get("type") == "array",
        metavar=_metavar(entry),
        help=text,
    )


def _metavar(entry: Mapping[str, Any]) -> str:
    kinds = [kind for kind in entry.get("anyOf", [entry]) if kind.get("type") != "null"]
    if "enum" in kinds[0]:
        return "|".join(kinds[0]["enum"])
    names = {
        "integer": "INTEGER",
        "number": "NUMBER",
        "object": "JSON",
        "array": "TEXT",
        "string": "TEXT",
    }
    return names.get(str(kinds[0].get("type")), "VALUE")
