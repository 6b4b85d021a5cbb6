"""The command line: what a user types, what comes out, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from app.cli import cli
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.results import GenerateResult, StreamDelta, Timing


class FakeEngine:
    """Answers every prompt with its own text; prompts that hold "bad" are refused, "broken" ones
    fail while they decode. The shortest prompt is done first."""

    failure: BaseException

    def __init__(self, server_args: ServerArgs) -> None:
        self.server_args = server_args
        self.params: SamplingParams | None = None
        self.is_raw = False

    def generate(
        self,
        prompts: Sequence[Any],
        params: SamplingParams,
        *,
        raw: bool,
        on_result: Callable[[int, GenerateResult], None],
    ) -> list[GenerateResult]:
        self.params, self.is_raw = params, raw
        results = {}
        for index in sorted(range(len(prompts)), key=lambda index: len(str(prompts[index]))):
            if "broken" in str(prompts[index]):
                raise self.failure
            results[index] = self._result(prompts[index])
            on_result(index, results[index])
        return [results[index] for index in range(len(prompts))]

    def stream(self, prompt: Any, params: SamplingParams, *, raw: bool) -> Iterator[StreamDelta]:
        self.params, self.is_raw = params, raw
        result = self._result(prompt)
        if result.error is not None:
            raise ValueError(result.error)
        yield StreamDelta(text="ab", token_ids=(1, 2), from_draft=(True, False))
        if "broken" in str(prompt):
            raise self.failure
        yield StreamDelta("c", (3,), (False,), finish_reason="stop", result=result)

    def _result(self, prompt: Any) -> GenerateResult:
        if "bad" in str(prompt):
            return GenerateResult(prompt=prompt, error="too\nlong")
        return GenerateResult(
            prompt=prompt, text="abc", token_ids=(1, 2, 3), finish_reason="stop", timing=Timing()
        )


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Replaces the engine; the list holds those that a command opened."""
    opened: list[FakeEngine] = []

    @contextmanager
    def open_fake(container: Any) -> Iterator[FakeEngine]:
        opened.append(FakeEngine(container.server_args()))
        yield opened[-1]

    monkeypatch.setattr("app.engine.open_engine", open_fake)
    return opened


def run(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, args, input=stdin)


def generate(*args: str, stdin: str | None = None) -> Result:
    return run("generate", "--model-path", "m", *args, stdin=stdin)


def test_help_names_every_command() -> None:
    outcome = run("--help")
    assert outcome.exit_code == 0
    for name in ("generate", "config", "graph", "models", "algorithms", "doctor"):
        assert name in outcome.output


def test_every_field_is_a_flag_in_its_own_spelling() -> None:
    text = run("generate", "--help").output
    for field in ServerArgs.model_fields:
        assert f"--{field.replace('_', '-')}" in text


def leaf_commands() -> Iterator[tuple[str, ...]]:
    for name, command in cli.commands.items():
        if isinstance(command, click.Group):
            yield from ((name, child) for child in command.commands)
        else:
            yield (name,)


@pytest.mark.parametrize("command", list(leaf_commands()), ids="-".join)
def test_every_command_takes_config_set_and_json(command: tuple[str, ...]) -> None:
    outcome = run(*command, "--help")
    assert outcome.exit_code == 0
    for option in ("--config", "--set", "--json"):
        assert option in outcome.output


@pytest.mark.parametrize("command", list(leaf_commands()), ids="-".join)
def test_a_wrong_configuration_is_one_line_and_exit_code_2(command: tuple[str, ...]) -> None:
    name = ["x"] if command in [("models", "pull"), ("generate",)] else []
    outcome = run(*command, *name, "--model-path", "m", "--set", "page_sise=3")
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.startswith("Error: ")
    assert "page_sise" in outcome.stderr
    assert "page_size" in outcome.stderr
    assert outcome.stdout == ""


def test_flags_beat_the_file_and_set_beats_flags(engines: list[FakeEngine], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model_path: from-file\npage_size: 4\ncontext_length: 64\ndtype: float32\n")
    outcome = run(
        *("generate", "hi", "--config", str(config)),
        *("--page-size", "8", "--context-length", "128", "--set", "context_length=256"),
    )
    assert outcome.exit_code == 0, outcome.stderr
    args = engines[0].server_args
    assert (args.model_path, args.page_size, args.context_length) == ("from-file", 8, 256)
    assert args.dtype == "float32"


def test_field_values_are_validated_by_the_record(engines: list[FakeEngine]) -> None:
    outcome = generate("hi", "--page-size", "3")
    assert outcome.exit_code == 2
    assert "page_size" in outcome.stderr
    assert "power of two" in outcome.stderr
    assert engines == []


def test_switches_and_repeated_flags(engines: list[FakeEngine]) -> None:
    generate("hi", "--trust-remote-code", "--plugins", "a:b", "--plugins", "c:d")
    generate("hi", "--no-trust-remote-code", "--model", "n", "--speculative-draft-model", "d")
    assert engines[0].server_args.trust_remote_code
    assert engines[0].server_args.plugins == ("a:b", "c:d")
    assert not engines[1].server_args.trust_remote_code
    assert engines[1].server_args.model_path == "n"
    assert engines[1].server_args.speculative_draft_model_path == "d"


def test_text_streams_to_standard_output_alone(engines: list[FakeEngine]) -> None:
    outcome = generate("hi")
    assert outcome.stdout == "abc\n"
    assert outcome.exit_code == 0


def test_json_gives_one_line_a_prompt_in_order(engines: list[FakeEngine]) -> None:
    outcome = generate("one", "two", "--json")
    assert [json.loads(line)["prompt"] for line in outcome.stdout.splitlines()] == ["one", "two"]
    assert outcome.exit_code == 0


def test_a_failed_prompt_ends_with_exit_code_1_after_the_others(
    engines: list[FakeEngine],
) -> None:
    outcome = generate("bad", "good", "--json")
    first, second = (json.loads(line) for line in outcome.stdout.splitlines())
    assert set(first) == {"prompt", "error"}
    assert set(first["error"]) == {"type", "message"}
    assert second["text"] == "abc"
    assert outcome.exit_code == 1
    outcome = generate("bad", "good")
    assert outcome.stdout == "abc\n"
    assert "Error: prompt 1: too long\n" in outcome.stderr
    assert outcome.exit_code == 1


def printed_prompts(text: str) -> list[str]:
    return [json.loads(line)["prompt"] for line in text.splitlines()]


def test_json_lines_come_as_early_as_their_order_allows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from app.commands.result_lines import ResultLines

    lines = ResultLines()
    seen = []
    for index in (1, 0, 3, 2):
        lines.add(index, GenerateResult(prompt=str(index)))
        seen.append(printed_prompts(capsys.readouterr().out))
    assert seen == [[], ["0", "1"], [], ["2", "3"]]


@pytest.mark.parametrize("failure", [ValueError("no"), KeyError("k"), KeyboardInterrupt()])
def test_what_was_finished_is_printed_when_decoding_breaks_off(
    engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(FakeEngine, "failure", failure, raising=False)
    outcome = generate("first prompt is broken", "a", "bb", "bad", "--json")
    assert printed_prompts(outcome.stdout) == ["a", "bb", "bad"]
    assert outcome.exit_code == 1


@pytest.mark.parametrize("mode", [["--json"], []])
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ValueError("no such\nnode"), "no such node"),
        (KeyError("k"), "KeyError: 'k'"),
        (MemoryError(), "out of memory: MemoryError"),
        (RuntimeError("cancelled"), "cancelled"),
    ],
)
def test_a_failure_while_decoding_is_one_line_and_exit_code_1(
    engines: list[FakeEngine],
    monkeypatch: pytest.MonkeyPatch,
    mode: list[str],
    failure: Exception,
    message: str,
) -> None:
    monkeypatch.setattr(FakeEngine, "failure", failure, raising=False)
    outcome = generate("broken", *mode)
    assert outcome.exit_code == 1
    assert outcome.stderr == f"Error: decoding failed: {message}\n"
    outcome = generate("broken", *mode, "--log-level", "debug")
    assert "Traceback" in outcome.stderr
    assert outcome.stderr.endswith(f"Error: decoding failed: {message}\n")


def test_show_drafts_with_json_warns(engines: list[FakeEngine]) -> None:
    assert "--show-drafts has no effect" in generate("hi", "--json", "--show-drafts").stderr
    assert "no effect" not in generate("hi", "--json").stderr


@pytest.mark.parametrize("charset", ["utf-8", "ascii"])
def test_json_survives_what_the_output_cannot_encode(
    engines: list[FakeEngine], charset: str
) -> None:
    prompts = ["\ud800", "caf\u00e9", "\U0001f600"]
    outcome = CliRunner(charset=charset).invoke(
        cli, ["generate", "--model-path", "m", "--json", *prompts]
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert sorted(printed_prompts(outcome.stdout)) == sorted(prompts)


def test_sampling_options_reach_the_engine(engines: list[FakeEngine]) -> None:
    generate(
        *("hi", "--raw", "--max-new-tokens", "7", "--temperature", "0.5", "--top-k", "9"),
        *("--top-p", "0.8", "--min-p", "0.1", "--seed", "3"),
        *("--stop", "a", "--stop", "b", "--ignore-eos"),
    )
    assert engines[0].is_raw
    assert engines[0].params == SamplingParams(
        max_new_tokens=7,
        temperature=0.5,
        top_k=9,
        top_p=0.8,
        min_p=0.1,
        seed=3,
        stop=("a", "b"),
        ignore_eos=True,
    )
    generate("hi")
    assert engines[1].params == SamplingParams()


def test_a_wrong_sampling_option_names_itself(engines: list[FakeEngine]) -> None:
    outcome = generate("hi", "--top-p", "7")
    assert outcome.exit_code == 2
    assert "top_p" in outcome.stderr
    assert engines == []


def test_no_spec_beats_every_other_source(engines: list[FakeEngine]) -> None:
    generate("hi", "--speculative-algorithm", "NGRAM", "--no-spec")
    generate("hi", "--set", "speculative_algorithm=NGRAM", "--no-spec")
    assert [engine.server_args.speculative_algorithm for engine in engines] == ["NONE", "NONE"]


def test_drafted_text_is_coloured_and_the_rest_is_not() -> None:
    from app.commands.draft_colours import DraftColours
    from app.scheduling.detokenizer import IncrementalDetokenizer

    letters = {1: "ab", 2: "c", 3: "de"}
    detokenizer = IncrementalDetokenizer(lambda ids: "".join(letters[i] for i in ids))
    colours = DraftColours(detokenizer)
    # The first delta holds back its last character, as a possible stop string does.
    shown = [
        colours.paint(StreamDelta("ab", (1, 2), (True, False))),
        colours.paint(StreamDelta("cde", (3,), (True,))),
    ]
    assert shown == [
        click.style("ab", fg="green"),
        "c" + click.style("de", fg="green"),
    ]


class TestPromptSources:
    def test_a_file_of_lines(self, engines: list[FakeEngine], tmp_path: Path) -> None:
        path = tmp_path / "p.txt"
        path.write_text("one\n\n  two {x}\u2028 still two  \n", encoding="utf-8")
        lines = generate("--prompt-file", str(path), "--json").stdout.split("\n")
        assert [json.loads(line)["prompt"] for line in lines if line] == [
            "one",
            "two {x}\u2028 still two",
        ]

    def test_a_file_of_json_lines(self, engines: list[FakeEngine], tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        messages = [{"role": "user", "content": "hi"}]
        path.write_text(
            json.dumps({"id": 1, "prompt": "a\nb"}) + "\n" + json.dumps({"messages": messages})
        )
        lines = generate("--prompt-file", str(path), "--json").stdout.splitlines()
        assert [json.loads(line)["prompt"] for line in lines] == ["a\nb", messages]

    @pytest.mark.parametrize(
        ("line", "prompt"),
        [
            ('{"prompt": null}', None),
            ('{"prompt": [1, 2]}', [1, 2]),
            ('{"prompt": "\\ud800"}', "\ud800"),
            ('{"messages": []}', []),
            ('{"messages": "hi"}', {"messages": "hi"}),
            ('{"messages": [1, 2]}', {"messages": [1, 2]}),
            ('{"messages": [{"role": 3}]}', [{"role": 3}]),
        ],
    )
    def test_what_a_line_asks_for_is_judged_by_the_tokenizer(
        self, engines: list[FakeEngine], tmp_path: Path, line: str, prompt: object
    ) -> None:
        path = tmp_path / "p.jsonl"
        path.write_text("\ufeff" + line + '\n{"prompt": "fine"}')
        lines = generate("--prompt-file", str(path), "--json").stdout.splitlines()
        assert [json.loads(line)["prompt"] for line in lines] == [prompt, "fine"]

    @pytest.mark.parametrize(
        "line",
        ["{", "3", "{}", '{"prompt": "a", "messages": []}', '{"prompt": NaN}', "[" * 100_000],
        ids=lambda line: line[:20],
    )
    def test_a_line_that_asks_for_nothing_is_named(
        self, engines: list[FakeEngine], tmp_path: Path, line: str
    ) -> None:
        path = tmp_path / "p.jsonl"
        path.write_text('{"prompt": "fine"}\n' + line)
        outcome = generate("--prompt-file", str(path), "--json")
        assert outcome.exit_code == 2
        assert "p.jsonl:2:" in outcome.stderr

    def test_a_missing_file_is_named(self, engines: list[FakeEngine]) -> None:
        outcome = generate("--prompt-file", "absent.txt")
        assert outcome.exit_code == 2
        assert "absent.txt" in outcome.stderr

    def test_piped_text_is_one_prompt(self, engines: list[FakeEngine]) -> None:
        outcome = generate("--json", stdin="first line\nsecond line\n")
        assert json.loads(outcome.stdout)["prompt"] == "first line\nsecond line"

    def test_piped_json_lines_are_prompts(self, engines: list[FakeEngine]) -> None:
        outcome = generate("--json", stdin='{"prompt": "a"}\n{"prompt": "b"}\n')
        assert [json.loads(line)["prompt"] for line in outcome.stdout.splitlines()] == ["a", "b"]

    def test_no_prompt_at_all_is_an_error(self, engines: list[FakeEngine]) -> None:
        outcome = generate(stdin="")
        assert outcome.exit_code == 2
        assert "--prompt-file" in outcome.stderr


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["generate", "--pagesize", "3"], "--pagesize"),
        (["models", "pull"], "NAME"),
        (["generat"], "generat"),
        (["config", "expain"], "expain"),
        (["graph", "--format", "png"], "png"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(args: list[str], named: str) -> None:
    outcome = run(*args)
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    assert named in outcome.stderr


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_args: Any, **_keywords: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("field: wrong\nvalue"), 2, "Error: field: wrong value\n"),
        (RuntimeError("pool is gone"), 1, "Error: pool is gone\n"),
        (OSError("disk is full"), 1, "Error: disk is full\n"),
    ],
)
def test_failures_have_their_exit_codes(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    monkeypatch.setattr("app.loading.model_zoo.pull_model", raising(error))
    outcome = run("models", "pull", "smollm2-135m")
    assert (outcome.exit_code, outcome.stderr, outcome.stdout) == (code, message, "")


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.loading.model_zoo.pull_model", raising(KeyError("bug")))
    assert isinstance(run("models", "pull", "x").exception, KeyError)


def test_models_are_listed_and_pulled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = json.loads(run("models", "list", "--json").stdout)
    assert {"smollm2-135m", "smollm2-135m-shallow"} <= {model["name"] for model in listed}
    assert "smollm2-135m" in run("models", "list").stdout
    monkeypatch.setattr("app.loading.model_zoo.pull_model", lambda name: tmp_path / name)
    pulled = json.loads(run("models", "pull", "smollm2-135m", "--json").stdout)
    assert pulled == {"path": str(tmp_path / "smollm2-135m")}


def test_algorithms_say_what_they_need() -> None:
    listed = {entry["name"]: entry for entry in json.loads(run("algorithms", "--json").stdout)}
    assert {"NONE", "STANDALONE", "NGRAM"} <= set(listed)
    assert listed["STANDALONE"]["needs"] == ["speculative_draft_model_path"]
    assert listed["NGRAM"]["needs"] == []
    assert "STANDALONE" in run("algorithms").stdout


def test_the_schema_describes_every_field() -> None:
    schema = json.loads(run("config", "schema").stdout)
    assert set(ServerArgs.model_fields) <= set(schema["properties"])


@pytest.mark.parametrize("view", ["text", "mermaid", "svg"])
def test_the_graph_shows_the_draft_scope(view: str) -> None:
    outcome = run("graph", "--format", view)
    assert outcome.exit_code == 0
    assert "draft_scope: DraftScope" in outcome.stdout
    assert "spec_worker" in outcome.stdout


def test_the_graph_as_json() -> None:
    graph = json.loads(run("graph", "--json").stdout)
    assert set(graph) == {"nodes", "edges", "scopes"}
    ids = {node["id"] for node in graph["nodes"]}
    assert {edge["source"] for edge in graph["edges"]} <= ids
    draft = next(scope for scope in graph["scopes"] if scope["path"] == "draft_scope")
    assert len(draft["border"]) == 4


def test_doctor_reports_the_machine() -> None:
    found = json.loads(run("doctor", "--json").stdout)
    assert {"device", "cpu", "compiler", "kernels", "models", "versions"} <= set(found)
    assert found["versions"]["torch"]
    assert "instruction_sets" in run("doctor").stdout
