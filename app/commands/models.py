"""`draftscope models`: the models that the project can obtain without a hub."""

from __future__ import annotations

from dataclasses import asdict

import click

from app.commands.engine_options import ConfigInputs, ConfiguredCommand
from app.commands.failures import ReportingGroup
from app.commands.output import print_json, print_table


@click.group(cls=ReportingGroup)
def models() -> None:
    """Small models that need no hub."""


@models.command("list", cls=ConfiguredCommand)
def list_known(inputs: ConfigInputs) -> None:
    """Names, where they come from, and whether they are cached."""
    if inputs.is_given:
        inputs.server_args()
    from app.loading.model_zoo import list_models

    known = [asdict(model) for model in list_models()]
    if inputs.is_json:
        print_json(known)
        return
    print_table(
        ["name", "cached", "description"],
        [
            [str(model["name"]), str(model["path"] or "no"), str(model["description"])]
            for model in known
        ],
    )


@models.command(cls=ConfiguredCommand)
@click.argument("name")
def pull(inputs: ConfigInputs, name: str) -> None:
    """Fetch a model into the cache; a cached one is left as it is."""
    if inputs.is_given:
        inputs.server_args()
    from app.loading.model_zoo import pull_model

    path = pull_model(name)
    if inputs.is_json:
        print_json({"path": str(path)})
    else:
        click.echo(path)
