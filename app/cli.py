"""The command line: one group. Each command parses, builds a container and calls the engine."""

from __future__ import annotations

import click

from app import __version__
from app.commands.algorithms import algorithms
from app.commands.config import config
from app.commands.doctor import doctor
from app.commands.failures import ReportingGroup
from app.commands.generate import generate
from app.commands.graph import graph
from app.commands.models import models


@click.group(
    cls=ReportingGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="draftscope")
def cli() -> None:
    """Speculative decoding whose draft can never leak into its target."""


for command in (generate, config, graph, models, algorithms, doctor):
    cli.add_command(command)
