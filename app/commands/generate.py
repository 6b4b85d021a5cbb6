"""`draftscope generate`: decodes prompts."""

from __future__ import annotations

import itertools
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from app.commands.draft_colours import DRAFT_COLOUR, DraftColours
from app.commands.engine_options import ConfigInputs, ConfiguredCommand
from app.commands.failures import decoding_reported, one_line
from app.commands.output import print_text
from app.commands.prompts import read_prompts
from app.commands.result_lines import ResultLines

if TYPE_CHECKING:
    from app.config.sampling_params import SamplingParams
    from app.engine import Engine
    from app.results import GenerateResult
    from app.tokenizer import NoTokenizer, Prompt, Tokenizer

_logger = logging.getLogger(__name__)


@click.command(cls=ConfiguredCommand)
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option(
    "--prompt-file",
    metavar="FILE",
    help="Prompts, one a line, or JSON lines with `prompt` or `messages`; - for standard input.",
)
@click.option("--raw", is_flag=True, help="Skip the chat template.")
@click.option("--max-new-tokens", metavar="INTEGER", help="Most tokens generated.  [default: 128]")
@click.option("--temperature", metavar="NUMBER", help="0 is greedy.  [default: 0]")
@click.option("--top-k", metavar="INTEGER", help="Sample from this many likeliest tokens.")
@click.option("--top-p", metavar="NUMBER", help="Sample from the likeliest tokens up to this mass.")
@click.option("--min-p", metavar="NUMBER", help="Drop tokens below this share of the likeliest.")
@click.option("--seed", metavar="INTEGER", help="Seed of the sampled tokens.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends the output.")
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on after the end token.")
@click.option("--no-spec", is_flag=True, help="Decode with the target alone.")
@click.option("--show-drafts", is_flag=True, help="Colour accepted draft tokens.")
def generate(
    inputs: ConfigInputs,
    prompts: tuple[str, ...],
    prompt_file: str | None,
    raw: bool,
    no_spec: bool,
    show_drafts: bool,
    **sampling: Any,
) -> None:
    """Decode prompts given as arguments, in a file or on standard input.

    Piped text is one prompt. The text streams, unless --json is given: then there is one JSON
    object a line, in the order of the prompts, each printed when all before it are done.
    """
    wanted = read_prompts(prompts, prompt_file, sys.stdin)
    params = _sampling_params(sampling)
    if no_spec:
        inputs = replace(inputs, settings=(*inputs.settings, "speculative_algorithm=NONE"))
    container = inputs.application().engine()
    from app.engine import open_engine

    if inputs.is_json and show_drafts:
        _logger.warning("--show-drafts has no effect with --json")
    with open_engine(container) as engine:
        if inputs.is_json:
            is_complete = _print_results(engine, wanted, params, raw)
        else:
            tokenizer = container.tokenizer() if show_drafts else None
            is_complete = _stream_texts(engine, wanted, params, raw, tokenizer)
    if not is_complete:
        sys.exit(1)


def _sampling_params(options: dict[str, Any]) -> SamplingParams:
    from app.config.sampling_params import SamplingParams

    return SamplingParams(**{k: v for k, v in options.items() if v is not None and v != ()})


def _print_results(
    engine: Engine, prompts: list[Prompt], params: SamplingParams, raw: bool
) -> bool:
    """One line a prompt, as early as their order allows; false when a prompt failed."""
    lines = ResultLines()
    with decoding_reported(), lines:
        results = engine.generate(prompts, params, raw=raw, on_result=lines.add)
    return all(result.error is None for result in results)


def _stream_texts(
    engine: Engine,
    prompts: list[Prompt],
    params: SamplingParams,
    raw: bool,
    tokenizer: Tokenizer | NoTokenizer | None,
) -> bool:
    """Print one text after the other; false when a prompt failed. With a tokenizer, drafts show."""
    is_complete = True
    for number, prompt in enumerate(prompts, start=1):
        if len(prompts) > 1:
            click.secho(f"[{number}/{len(prompts)}]", err=True, dim=True)
        try:
            _stream_text(engine, prompt, params, raw, tokenizer)
        except ValueError as error:
            is_complete = False
            click.echo(f"Error: prompt {number}: {one_line(error)}", err=True)
    return is_complete


def _stream_text(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    raw: bool,
    tokenizer: Tokenizer | NoTokenizer | None,
) -> None:
    """Raises ValueError when the prompt is refused, RunFailure when decoding it fails."""
    colours = DraftColours(None if tokenizer is None else tokenizer.detokenizer())
    deltas = engine.stream(prompt, params, raw=raw)
    # The first step admits the prompt, and nothing has been drafted by then.
    with decoding_reported(ValueError):
        first = next(deltas)
    with decoding_reported():
        for delta in itertools.chain([first], deltas):
            print_text(colours.paint(delta), is_line=False)
            if delta.result is not None:
                click.echo()
                if tokenizer is not None:
                    _print_summary(delta.result)


def _print_summary(result: GenerateResult) -> None:
    """What the draft contributed, on standard error."""
    parts = [f"{result.completion_tokens} tokens"]
    if result.timing.decode_tokens_per_s is not None:
        parts.append(f"{result.timing.decode_tokens_per_s:.1f} tokens/s")
    if result.spec is not None:
        spec = result.spec.to_json()
        coloured = click.style(f"{spec['accepted']} accepted draft tokens", fg=DRAFT_COLOUR)
        parts += [
            f"{result.algorithm}: {coloured} of {spec['proposed']} proposed",
            f"accept length {spec['accept_length'] or 0:.2f}",
        ]
    click.echo(f"-- {', '.join(parts)}", err=True)
