"""`draftscope graph`: the provider graph."""

from __future__ import annotations

import click

from app.commands.engine_options import ConfigInputs, ConfiguredCommand
from app.commands.graph_svg import graph_as_svg
from app.commands.graph_views import graph_as_mermaid, graph_as_text
from app.commands.output import print_json


@click.command(cls=ConfiguredCommand)
@click.option(
    "--format",
    "view",
    type=click.Choice(["text", "mermaid", "svg"]),
    default="text",
    show_default=True,
    help="How to draw it.",
)
def graph(inputs: ConfigInputs, view: str) -> None:
    """What the engine is wired from, with the border of the draft scope drawn.

    The graph is read from the containers themselves and is the same for every configuration.
    """
    if inputs.is_given:
        inputs.server_args()
    from app.containers import EngineContainer
    from app.provider_graph import build_provider_graph

    built = build_provider_graph(EngineContainer)
    if inputs.is_json:
        print_json(built.to_json())
    elif view == "svg":
        click.echo(graph_as_svg(built))
    elif view == "mermaid":
        click.echo(graph_as_mermaid(built))
    else:
        click.echo(graph_as_text(built))
