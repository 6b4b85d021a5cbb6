"""Decode speed of this engine's target alone, of NGRAM, and of transformers, on the same prompts.

The contenders take turns within one run, so that whatever else the machine does meets all of them.
Every prompt decodes the same number of tokens, greedily, past the end token. The speed is
(tokens - 1) / (last - first token time); a prompt's figure is the median of its rounds.

Engines are opened afresh for every round: NGRAM remembers what it decoded, and a prompt that was
decoded before would be replayed.

Run: make bench, or: .venv/bin/python benchmarks/decode_vs_transformers.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from app import SamplingParams, ServerArgs, open_engine
from app.config.model_path import resolve_model_path
from app.config.yaml_io import load_server_args

HERE = Path(__file__).parent
BASELINE = "target alone"
WARM_UP = "The history of the bicycle begins"


@dataclass(slots=True)
class Run:
    """What one decode of one prompt measured."""

    tokens_per_s: float
    accept_length: float | None = None


Decode = Callable[[str], Run]


@dataclass(slots=True)
class Contender:
    """A name, how it is opened for a round, and what it measured: prompt id -> rounds."""

    name: str
    open: Callable[[], AbstractContextManager[Decode]]
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def speed(self, prompt_id: str) -> float:
        return statistics.median(run.tokens_per_s for run in self.runs[prompt_id])

    def median_speed(self) -> float:
        return statistics.median(self.speed(prompt_id) for prompt_id in self.runs)

    def accept_length(self) -> str:
        lengths = [r.accept_length for runs in self.runs.values() for r in runs]
        known = [length for length in lengths if length is not None]
        return f"{statistics.mean(known):.2f}" if known else "-"


@contextmanager
def engine_decode(args: ServerArgs, max_new_tokens: int) -> Iterator[Decode]:
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    with open_engine(args) as engine:

        def decode(text: str) -> Run:
            result = engine.generate([text], params, raw=True)[0]
            assert result.error is None, result.error
            assert result.timing.decode_tokens_per_s is not None
            spec = result.spec.to_json() if result.spec is not None else {}
            return Run(result.timing.decode_tokens_per_s, spec.get("accept_length"))

        yield decode


def transformers_decode(path: Path, dtype: torch.dtype, max_new_tokens: int) -> Decode:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    def decode(text: str) -> Run:
        times: list[float] = []

        def note_time(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            times.append(time.perf_counter())
            return scores

        inputs = tokenizer(text, return_tensors="pt")
        model.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=max_new_tokens,
            max_new_tokens=max_new_tokens,
            logits_processor=[note_time],
        )
        return Run((len(times) - 1) / (times[-1] - times[0]))

    return decode


def measure(
    contenders: Sequence[Contender], prompts: Sequence[dict[str, str]], rounds: int
) -> None:
    for round_number in range(1, rounds + 1):
        with ExitStack() as stack:
            opened = [(c, stack.enter_context(c.open())) for c in contenders]
            for _, decode in opened:
                decode(WARM_UP)
            for prompt in prompts:
                for contender, decode in opened:
                    contender.runs.setdefault(prompt["id"], []).append(decode(prompt["text"]))
        print(f"round {round_number} of {rounds} done", flush=True)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def report(contenders: Sequence[Contender], options: argparse.Namespace) -> str:
    baseline = next(c for c in contenders if c.name == BASELINE)
    ids = list(baseline.runs)
    lines = [
        "# Decode speed, tokens per second",
        "",
        f"Model {options.model}, {options.dtype}, {options.max_new_tokens} greedy tokens a prompt, "
        f"one prompt at a time, {options.rounds} interleaved rounds, medians.",
        f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {version('transformers')}.",
        "",
        f"Command: `python benchmarks/decode_vs_transformers.py --rounds {options.rounds} "
        f"--max-new-tokens {options.max_new_tokens}`",
        "",
        f"| contender | median | ratio to {BASELINE} | accept length | " + " | ".join(ids) + " |",
        "|---" * (len(ids) + 4) + "|",
    ]
    for contender in contenders:
        speeds = " | ".join(f"{contender.speed(prompt_id):.1f}" for prompt_id in ids)
        median = contender.median_speed()
        lines.append(
            f"| {contender.name} | {median:.1f} | {median / baseline.median_speed():.2f} | "
            f"{contender.accept_length()} | {speeds} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument(
        "--output", type=Path, default=HERE / "results" / "decode_vs_transformers.md"
    )
    options = parser.parse_args()
    prompts = json.loads(options.prompts.read_text("utf-8"))
    flags = {"model_path": options.model, "dtype": options.dtype}
    configs = HERE.parent / "configs"
    num_tokens = options.max_new_tokens
    path = resolve_model_path(options.model)
    peer = transformers_decode(path, getattr(torch, options.dtype), num_tokens)
    contenders = [
        *(
            Contender(name, partial(engine_decode, load_server_args(file, {}, flags), num_tokens))
            for name, file in (
                (BASELINE, configs / "smollm2.yaml"),
                ("NGRAM", configs / "smollm2-ngram.yaml"),
            )
        ),
        Contender("transformers", partial(nullcontext, peer)),
    ]
    measure(contenders, prompts, options.rounds)
    text = report(contenders, options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
