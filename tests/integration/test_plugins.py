"""Plugins: three ways to register an algorithm, and what its factory and worker are given."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import cli
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.config.yaml_io import load_server_args
from app.containers import EngineContainer
from app.engine import open_engine
from app.speculative.builtin import builtin_algorithms
from app.speculative.plugins import build_algorithm_registry
from app.speculative.registry import (
    RESERVED_NAMES,
    AlgorithmRegistration,
    SpeculativeAlgorithm,
)
from app.workers.base import BaseSpecWorker
from app.workers.target_only_worker import TargetOnlyWorker
from tests.integration.pairs import (
    Pair,
    Probe,
    decode,
    draft_tp_worker,
    embeddings_of,
    target_is_untouched,
    write_pair,
)

PLUGIN = "prompt_lookup:registration"
# Prompts that repeat, so that looking up finds something, and one that does not.
REPEATING: Sequence[Sequence[int]] = ([7, 8, 9, 10] * 6, [50, 51, 52] * 5, [3, 4, 5])

ENTRY_POINT = """\
[draftscope.speculative_algorithms]
{name} = {value}
"""
MODULE = """\
from app.speculative.registry import SpeculativeAlgorithm
from app.workers.target_only_worker import TargetOnlyWorker


@SpeculativeAlgorithm.register("{name}", summary="of a test")
def registration(server_args):
    return TargetOnlyWorker


not_a_registration = 3
"""

BROKEN_MODULES = {
    "broken_plugin": "import a_library_that_nobody_has\n",
    "no_python": "def (\n",
    "raises": "raise RuntimeError('two\\nlines')\n",
    "exits": "raise SystemExit(3)\n",
    "lazy": "def __getattr__(name): raise KeyError(name)\n",
    "nameless": "from app.speculative.registry import AlgorithmRegistration\n"
    "registration = AlgorithmRegistration(name=3, create_worker=None)\n",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on sys.path for modules that only one test knows."""
    directory = tmp_path / "site"
    directory.mkdir()
    known = set(sys.modules)
    monkeypatch.syspath_prepend(directory)
    yield directory
    for name in set(sys.modules) - known:
        if str(directory) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def prompt_lookup(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example of the documentation, importable as its users import it."""
    monkeypatch.syspath_prepend(root / "docs" / "plugins")
    module = importlib.import_module("prompt_lookup")
    yield module
    del sys.modules["prompt_lookup"]


def write_module(site: Path, module: str, algorithm: str) -> None:
    (site / f"{module}.py").write_text(MODULE.format(name=algorithm), "utf-8")
    importlib.invalidate_caches()


def install(site: Path, distribution: str, name: str, value: str) -> None:
    """What pip would leave behind for a distribution with one entry point."""
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    (info / "METADATA").write_text(metadata, "utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINT.format(name=name, value=value), "utf-8")
    importlib.invalidate_caches()


# The example of the documentation.


def decode_repeating(pair: Pair, container: Any) -> None:
    alone = decode(EngineContainer(server_args=pair.args()), REPEATING, 24)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    with target_is_untouched(container), open_engine(container) as engine:
        results = engine.generate(REPEATING, params)
    assert [result.token_ids for result in results] == alone
    assert results[0].algorithm == "PROMPT_LOOKUP"
    assert sum(result.spec.proposed for result in results if result.spec) > 0


def test_the_example_is_lossless_through_the_container(pair: Pair, prompt_lookup: Any) -> None:
    algorithms = builtin_algorithms().with_registration(prompt_lookup.registration)
    args = pair.args(speculative_algorithm="prompt_lookup")
    decode_repeating(pair, EngineContainer(server_args=args, algorithms=algorithms))
    with open_engine(args, algorithms=algorithms) as engine:
        assert engine.scheduler.algorithm == "PROMPT_LOOKUP"


def test_the_example_is_lossless_through_yaml(
    pair: Pair, prompt_lookup: Any, tmp_path: Path
) -> None:
    config = tmp_path / "plugin.yaml"
    config.write_text(
        f"model_path: {pair.target}\nmax_total_tokens: 1024\nmax_running_requests: 4\n"
        f'plugins: ["{PLUGIN}"]\nspeculative_algorithm: PROMPT_LOOKUP\n',
        "utf-8",
    )
    decode_repeating(pair, EngineContainer(server_args=load_server_args(config, {}, {}, ())))


def test_the_example_is_lossless_through_an_entry_point(
    pair: Pair, prompt_lookup: Any, site: Path
) -> None:
    install(site, "prompt-lookup", "prompt_lookup", PLUGIN)
    args = pair.args(speculative_algorithm="PROMPT_LOOKUP")
    decode_repeating(pair, EngineContainer(server_args=args))


def test_the_command_line_lists_a_plugin(prompt_lookup: Any) -> None:
    outcome = CliRunner().invoke(cli, ["algorithms", "--plugins", PLUGIN])
    assert outcome.exit_code == 0, outcome.stderr
    (line,) = (line for line in outcome.stdout.splitlines() if "PROMPT_LOOKUP" in line)
    assert "plugin" in line


# Names.


def test_registering_touches_no_other_registry() -> None:
    before = builtin_algorithms()

    @SpeculativeAlgorithm.register("mine")
    def registration(server_args: ServerArgs) -> type[BaseSpecWorker]:
        return TargetOnlyWorker

    after = before.with_registration(registration)
    assert "MINE" in after.names
    assert after.get("Mine").create_worker is registration.create_worker
    assert "MINE" not in before.names
    assert "MINE" not in builtin_algorithms().names


@pytest.mark.parametrize("name", [*RESERVED_NAMES, "nextn", "Standalone"])
def test_reserved_names_are_refused_and_listed(name: str) -> None:
    message = rf"'{name.upper()}': the name is reserved; reserved are .*EAGLE3.*NGRAM"
    with pytest.raises(ValueError, match=message):
        SpeculativeAlgorithm.register(name)
    with pytest.raises(ValueError, match=message):
        builtin_algorithms().with_registration(
            AlgorithmRegistration(name=name, create_worker=lambda args: TargetOnlyWorker)
        )


def test_a_name_that_is_taken_twice_is_refused_and_the_known_are_listed(
    prompt_lookup: Any,
) -> None:
    registry = builtin_algorithms().with_registration(prompt_lookup.registration)
    with pytest.raises(ValueError, match=r"registered already; known are NONE.*PROMPT_LOOKUP"):
        registry.with_registration(prompt_lookup.registration)


def test_two_plugins_of_one_name_name_the_second(pair: Pair, site: Path) -> None:
    write_module(site, "first_plugin", "TWICE")
    write_module(site, "second_plugin", "twice")
    plugins = ("first_plugin:registration", "second_plugin:registration")
    with pytest.raises(ValueError, match=r"plugins: 'second_plugin:registration'.*'TWICE' is reg"):
        build_algorithm_registry(pair.args(plugins=plugins))


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("good_plugin", "plugins: 'good_plugin': write it as \"package.module:attribute\""),
        ("absent_plugin:registration", "absent_plugin cannot be imported"),
        ("good_plugin:absent", "absent is NoneType, not an AlgorithmRegistration"),
        ("good_plugin:not_a_registration", "not_a_registration is int, not an Algorithm"),
        ("broken_plugin:registration", "broken_plugin cannot be imported: No module named"),
        ("no_python:registration", "no_python cannot be imported: SyntaxError: "),
        ("raises:registration", "raises cannot be imported: RuntimeError: two lines"),
        ("exits:registration", "exits cannot be imported: SystemExit: 3"),
        ("lazy:registration", "registration cannot be read: KeyError: 'registration'"),
        ("nameless:registration", "not an algorithm: AttributeError"),
        (".good_plugin:registration", 'write it as "package.module:attribute"'),
        ("good..plugin:registration", 'write it as "package.module:attribute"'),
        (":registration", 'write it as "package.module:attribute"'),
        ("good_plugin:", 'write it as "package.module:attribute"'),
        ("good_plugin.deeper:registration", "'good_plugin' is not a package"),
        ("reserved_plugin:registration", "'EAGLE': the name is reserved"),
    ],
)
def test_a_faulty_plugin_is_one_line_and_exit_code_2(
    pair: Pair, site: Path, plugin: str, message: str
) -> None:
    write_module(site, "good_plugin", "GOOD")
    write_module(site, "reserved_plugin", "EAGLE")
    for module, source in BROKEN_MODULES.items():
        (site / f"{module}.py").write_text(source, "utf-8")
    arguments = ["--model-path", str(pair.target), "--plugins", plugin]
    outcome = CliRunner().invoke(cli, ["generate", "hello", *arguments])
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    assert message in outcome.stderr


@pytest.mark.parametrize("value", ["absent_plugin:registration", "no_python:registration", "x"])
def test_a_faulty_entry_point_is_named(pair: Pair, site: Path, value: str) -> None:
    (site / "no_python.py").write_text("def (\n", "utf-8")
    install(site, "faulty", "mine", value)
    with pytest.raises(ValueError, match=rf"entry point mine \({value}\): "):
        build_algorithm_registry(pair.args())


def test_an_entry_point_may_name_extras(pair: Pair, site: Path) -> None:
    write_module(site, "good_plugin", "GOOD")
    install(site, "good", "good", "good_plugin:registration [fast]")
    assert "GOOD" in build_algorithm_registry(pair.args()).names


def raising(error: Exception) -> Any:
    def fail(server_args: ServerArgs) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"resolve": lambda args: None}, "its resolve gave None; it must give a mapping"),
        ({"resolve": lambda args: [("a", 1)]}, "its resolve gave .*; it must give a mapping"),
        ({"resolve": lambda args: {3: 1}}, "its resolve gave .*; it must give a mapping"),
        ({"resolve": lambda args: {"nope": 1}}, "its resolve: unknown field 'nope'"),
        ({"resolve": lambda args: {"page_size": "x"}}, r"page_size = 'x' \(.*FAULTY: its resolve"),
        ({"resolve": raising(KeyError("k"))}, "its resolve failed with KeyError: 'k'"),
        ({"validate": raising(ZeroDivisionError("a\nb"))}, "its validate failed with .*: a b"),
        ({"validate": lambda: None}, "its validate failed with TypeError"),
        ({"create_worker": raising(KeyError("k"))}, "its factory failed with KeyError: 'k'"),
        ({"create_worker": lambda: TargetOnlyWorker}, "its factory failed with TypeError"),
        ({"create_worker": None}, "its factory failed with TypeError"),
    ],
)
def test_a_faulty_part_of_a_registration_names_the_plugin(
    pair: Pair, parts: dict[str, Any], message: str
) -> None:
    good = {"create_worker": lambda args: TargetOnlyWorker}
    registration = AlgorithmRegistration(name="faulty", **(good | parts))
    container = pair.build(
        builtin_algorithms().with_registration(registration), speculative_algorithm="FAULTY"
    )
    with pytest.raises(ValueError, match=message) as caught:
        container.scheduler()
    assert "FAULTY" in str(caught.value)
    assert "\n" not in str(caught.value)


class OtherSignature(TargetOnlyWorker):
    def __init__(self, model: object) -> None:
        raise AssertionError("never called")


class FailsInside(TargetOnlyWorker):
    def __init__(self, **parts: Any) -> None:
        raise KeyError("k")


class CannotPropose(BaseSpecWorker):
    """Lacks propose."""


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (OtherSignature, "worker OtherSignature cannot be called with the keywords server_args"),
        (FailsInside, "worker FailsInside failed with KeyError: 'k'"),
        (CannotPropose, "worker CannotPropose lacks propose"),
    ],
)
def test_a_faulty_worker_names_the_plugin(pair: Pair, worker: Any, message: str) -> None:
    registration = AlgorithmRegistration(name="FAULTY", create_worker=lambda args: worker)
    container = pair.build(
        builtin_algorithms().with_registration(registration), speculative_algorithm="FAULTY"
    )
    with (
        target_is_untouched(container),
        pytest.raises(ValueError, match=f"algorithm FAULTY: its {message}"),
    ):
        container.scheduler()


FAILS_WHILE_DECODING = """\
from app.speculative.registry import SpeculativeAlgorithm
from app.workers.base import BaseSpecWorker

RESOLVED = {{"speculative_num_draft_tokens": 4}}


class Worker(BaseSpecWorker):
    def propose(self, states):
        raise {error}


@SpeculativeAlgorithm.register("FAILING", resolve=lambda args: RESOLVED)
def registration(server_args):
    return Worker
"""


@pytest.mark.parametrize("mode", [["--json"], []])
@pytest.mark.parametrize("error", ["ValueError('no\\nidea')", "KeyError('no idea')"])
def test_a_plugin_that_fails_while_decoding_is_one_line_and_exit_code_1(
    pair: Pair, site: Path, mode: list[str], error: str
) -> None:
    (site / "failing.py").write_text(FAILS_WHILE_DECODING.format(error=error), "utf-8")
    arguments = [
        *("generate", "hello", "--model-path", str(pair.target), "--max-total-tokens", "512"),
        *("--plugins", "failing:registration", "--speculative-algorithm", "FAILING", *mode),
    ]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 1
    (line,) = (line for line in outcome.stderr.splitlines() if "WARNING" not in line)
    assert line.startswith("Error: decoding failed: ")
    assert "no idea" in line


def test_a_factory_that_names_no_worker_is_an_error(pair: Pair) -> None:
    registration = AlgorithmRegistration(name="WRONG", create_worker=lambda args: dict)
    container = pair.build(
        builtin_algorithms().with_registration(registration), speculative_algorithm="WRONG"
    )
    with (
        target_is_untouched(container),
        pytest.raises(ValueError, match=r"WRONG: its factory gave .*dict.*BaseSpecWorker"),
    ):
        container.scheduler()


def test_a_plugin_refuses_a_record_before_anything_is_loaded(pair: Pair) -> None:
    def validate(args: ServerArgs) -> None:
        raise ValueError("speculative_num_steps: this plugin needs an even number")

    registration = AlgorithmRegistration(
        name="PICKY", create_worker=lambda args: TargetOnlyWorker, validate=validate
    )
    container = pair.build(
        builtin_algorithms().with_registration(registration),
        speculative_algorithm="PICKY",
        model_path="/absent/target",
    )
    with pytest.raises(ValueError, match="needs an even number"):
        container.scheduler()


# A plugin with a draft model.


def test_a_plugin_with_a_draft_model_gets_the_draft_copy(pair: Pair) -> None:
    probe = Probe()
    container = probe.build(pair, speculative_draft_load_format="dummy")
    with target_is_untouched(container):
        draft = draft_tp_worker(container.scheduler())
    record = probe.factory_record
    assert record is not None
    assert probe.worker_record is record
    assert draft.server_args is record
    assert record.model_path == str(pair.draft)
    assert record.load_format == "dummy"
    assert record.context_length == container.target.model_config().context_len
    assert all(published is record for published in probe.published)
    plain = draft_tp_worker(pair.build().scheduler())
    assert not (embeddings_of(draft) == embeddings_of(plain)).all()
    assert decode(container) == pair.decode_alone()


def test_a_plugin_without_a_draft_model_gets_its_load_format_too(pair: Pair) -> None:
    seen: list[ServerArgs] = []

    def create(record: ServerArgs) -> type[BaseSpecWorker]:
        seen.append(record)
        return TargetOnlyWorker

    registry = builtin_algorithms().with_registration(
        AlgorithmRegistration(name="BARE", create_worker=create)
    )
    container = pair.build(
        registry, speculative_algorithm="bare", speculative_draft_load_format="dummy"
    )
    assert decode(container) == pair.decode_alone()
    assert [record.load_format for record in seen] == ["dummy"]
    assert seen[0].model_path == str(pair.target)
    assert container.runtime_context().resolved.load_format == "auto"


def test_a_worker_that_never_asks_for_its_draft_loads_none(pair: Pair) -> None:
    registry = builtin_algorithms().with_registration(
        AlgorithmRegistration(
            name="IDLE", create_worker=lambda args: TargetOnlyWorker, has_draft_model=True
        )
    )
    container = pair.build(
        registry, speculative_algorithm="IDLE", speculative_draft_model_path="/absent/draft"
    )
    assert decode(container) == pair.decode_alone()
