"""What users get wrong: exit code 2 and one line that says what would be right."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from app.cli import cli
from app.containers import EngineContainer
from app.engine import open_engine
from tests.integration.pairs import (
    CONTEXT_LENGTH,
    Pair,
    change_config,
    decode,
    target_is_untouched,
    without_speculation,
    write_pair,
)

WEIGHTS = "model.safetensors"
SMALL = ("--max-total-tokens", "512", "--max-running-requests", "4", "--max-new-tokens", "4")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pair = write_pair(tmp_path_factory.mktemp("pair"))
    # Else every line would come with a warning about the draft's shorter context.
    change_config(pair.draft, max_position_embeddings=CONTEXT_LENGTH)
    return pair


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Commands log to the standard error that the runner replaces."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def damaged(pair: Pair, tmp_path: Path) -> Pair:
    """Copies that a test may damage."""
    return Pair(
        Path(shutil.copytree(pair.target, tmp_path / "target")),
        Path(shutil.copytree(pair.draft, tmp_path / "draft")),
    )


def generate(
    pair: Pair, *arguments: str, prompt: str = "hello", standalone: bool = False
) -> Result:
    draft = ["--speculative-algorithm", "STANDALONE"]
    draft += ["--speculative-draft-model-path", str(pair.draft)]
    return CliRunner().invoke(
        cli,
        [
            *("generate", "hello", "--json", "--model-path", str(pair.target), *SMALL),
            *(draft if standalone else ()),
            *arguments,
        ],
    )


def assert_refused(outcome: Result, *parts: str) -> None:
    """Exit code 2, one line on standard error that holds `parts`, nothing on standard output."""
    assert outcome.exit_code == 2, (outcome.exit_code, outcome.stderr, outcome.exception)
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("Error: ")
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    assert "Traceback" not in outcome.stderr
    for part in parts:
        assert part in outcome.stderr


def test_the_commands_of_these_tests_work_when_nothing_is_wrong(pair: Pair) -> None:
    for standalone in (False, True):
        outcome = generate(pair, standalone=standalone)
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.stderr == ""
        assert len(json.loads(outcome.stdout)["token_ids"]) <= 4


# Values.


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--set", "page_sise=3"), ("--set page_sise", "did you mean 'page_size'")),
        (("--set", "page_size"), ("write it as key=value",)),
        (("--page-size", "3"), ("page_size = '3'", "flag --page-size", "power of two")),
        (("--dtype", "int8"), ("dtype = 'int8'", "'auto', 'float32', 'bfloat16' or 'float16'")),
        (("--device", "tpu"), ("device = 'tpu'", "'cpu' or 'cuda'")),
        (("--load-format", "remote"), ("load_format", "give its directory as model_path")),
        (("--load-format", "tensors"), ("load_format", "must be one of auto", "safetensors")),
        (("--speculative-draft-load-format", "jax"), ("speculative_draft_load_format", "jax")),
        (("--speculative-algorithm", "EGALE"), ("'EGALE' is unknown", "STANDALONE", "NGRAM")),
        (("--speculative-algorithm", "STANDALONE"), ("speculative_draft_model_path is needed",)),
        (("--context-length", "512"), ("context_length = 512", "at most 256 tokens")),
        (("--context-length", "-1"), ("context_length = ", "greater than 0")),
        (("--max-total-tokens", "0"), ("max_total_tokens = ", "greater than 0")),
        (("--kv-cache-memory", "many"), ("kv_cache_memory = 'many'",)),
        (("--json-model-override-args", "{"), ("json_model_override_args", "JSON object")),
        (
            ("--json-model-override-args", '{"rope_theta": "abc"}'),
            ("config.json: rope_theta must be a number", "set by json_model_override_args"),
        ),
        (("--top-k", "2147483648"), ("top_k",)),
        (
            ("--speculative-algorithm", "NGRAM", "--set", "speculative_ngram_capacity=2"),
            ("speculative_ngram_capacity = 2", "speculative_ngram_max_trie_depth = 18"),
        ),
        (("--temperature", "-1"), ("temperature",)),
        (("--top-p", "2"), ("top_p",)),
        (("--max-new-tokens", "none"), ("max_new_tokens",)),
        (("--config", "/absent.yaml"), ("/absent.yaml: no such configuration file",)),
        (("--model-path", "/absent/model"), ("model_path: /absent/model does not exist",)),
        (("--prompt-file", "/absent.txt"), ("/absent.txt",)),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_a_faulty_value(pair: Pair, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    assert_refused(generate(pair, *arguments), *parts)


@pytest.mark.parametrize(
    ("steps", "topk", "nodes", "parts"),
    [
        (2, 2, 8, ("draft at most 6 tokens", "at most 7 with the root")),
        (1, 4, 6, ("draft at most 4 tokens", "at most 5 with the root")),
        (70, 1, None, ("must be at most speculative_max_draft_tokens = 64",)),
        (3, 2, None, ("speculative_eagle_topk = 2", "needs speculative_num_draft_tokens")),
        (None, 2, 4, ("speculative_eagle_topk = 2", "needs speculative_num_steps")),
        (2, 0, 3, ("speculative_eagle_topk = ", "greater than 0")),
        (2, 1, 1, ("speculative_num_draft_tokens = ", "greater than or equal to 2")),
    ],
)
def test_a_tree_that_cannot_be_formed(
    pair: Pair, steps: int | None, topk: int | None, nodes: int | None, parts: tuple[str, ...]
) -> None:
    given = {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": nodes}
    arguments = [
        argument
        for name, value in given.items()
        if value is not None
        for argument in ("--set", f"speculative_{name}={value}")
    ]
    assert_refused(generate(pair, *arguments, standalone=True), *parts)


def test_a_tree_at_the_limit_is_formed(pair: Pair) -> None:
    arguments = ("--set", "speculative_num_steps=2", "--set", "speculative_eagle_topk=2")
    outcome = generate(pair, *arguments, "--set", "speculative_num_draft_tokens=7", standalone=True)
    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model_path: x\nspeculative_algorithmm: NGRAM\n", ("unknown field", "did you mean")),
        ("model_path: x\nmodel_path: y\n", ("line 2", "'model_path' is given twice")),
        ("- a list\n", ("must hold `field: value` lines",)),
        ("model_path: [x\n", ("line",)),
        ("page_size: 4\n", ("model_path is required",)),
        ("extends: absent.yaml\nmodel_path: x\n", ("absent.yaml does not exist",)),
        ("extends: config.yaml\nmodel_path: x\n", ("extend each other",)),
        ("model_path: 2024-13-45\n", ("line 1", "month must be in 1..12", "quote it")),
        ("model_path: x\ncontext_length: !!int foo\n", ("line 2", "'foo' is no int")),
        ("model_path: x\njson_model_override_args: &a {x: *a}\n", ("line 2", "contains itself")),
        ("model_path: x\nspeculative_num_steps: true\n", ("must not be true or false",)),
    ],
)
def test_a_faulty_file(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text, "utf-8")
    outcome = CliRunner().invoke(cli, ["generate", "hello", "--config", str(config)])
    assert_refused(outcome, str(config) if "required" not in parts[0] else "model_path", *parts)


# Checkpoints.


def truncate(directory: Path) -> None:
    file = directory / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1000])


def scramble(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes(b"\xff" * 4000)


def empty(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes(b"")


def drop_weights(directory: Path) -> None:
    (directory / WEIGHTS).unlink()


def rewrite(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def drop_a_tensor(directory: Path) -> None:
    rewrite(directory, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))


def add_a_tensor(directory: Path) -> None:
    rewrite(
        directory,
        lambda tensors: tensors.update(extra=tensors["model.norm.weight"].clone()),
    )


def resize(directory: Path) -> None:
    change_config(directory, intermediate_size=48)


def break_config(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": ', "utf-8")


def drop_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def unknown_architecture(directory: Path) -> None:
    change_config(directory, architectures=["RavenForCausalLM"], model_type="raven")


def recurrent_architecture(directory: Path) -> None:
    change_config(directory, architectures=["MambaForCausalLM"], model_type="mamba")


def no_heads(directory: Path) -> None:
    change_config(directory, num_attention_heads=0)


def list_config(directory: Path) -> None:
    (directory / "config.json").write_text("[]", "utf-8")


def deep_config(directory: Path) -> None:
    (directory / "config.json").write_text("[" * 100_000, "utf-8")


def unknown_activation(directory: Path) -> None:
    change_config(directory, hidden_act="foo")


def unknown_rope(directory: Path) -> None:
    change_config(directory, rope_parameters={"rope_type": "longrope2", "rope_theta": 1e4})


def broken_generation_config(directory: Path) -> None:
    (directory / "generation_config.json").write_text("{", "utf-8")


def corrupt_pt(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    (directory / "model.pt").write_bytes(b"garbage")


DAMAGES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "truncated weights": (truncate, (WEIGHTS,)),
    "scrambled weights": (scramble, (WEIGHTS,)),
    "empty weights": (empty, (WEIGHTS,)),
    "no weights": (drop_weights, ("*.safetensors",)),
    "missing tensor": (drop_a_tensor, ("missing", "model.layers.1.self_attn.k_proj.weight")),
    "left-over tensor": (add_a_tensor, ("left over", "extra")),
    "other shapes": (resize, ("shape", "gate_proj")),
    "broken config": (break_config, ("config.json", "JSON")),
    "no config": (drop_config, ("config.json",)),
    "unknown architecture": (unknown_architecture, ("raven",)),
    "no heads": (no_heads, ("config.json: num_attention_heads", "got 0")),
    "list config": (list_config, ("config.json: must hold a JSON object",)),
    "deep config": (deep_config, ("config.json", "nested deeper")),
    "unknown activation": (unknown_activation, ("hidden_act 'foo'", "silu")),
    "unknown rope": (unknown_rope, ("rope_type 'longrope2'", "yarn")),
    "broken generation config": (broken_generation_config, ("generation_config.json", "JSON")),
    "corrupt torch file": (corrupt_pt, ("model.pt", "not a readable torch weight file")),
    "recurrent architecture": (recurrent_architecture, ("Mamba",)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_faulty_target(damaged: Pair, damage: str) -> None:
    harm, parts = DAMAGES[damage]
    harm(damaged.target)
    outcome = generate(damaged)
    assert_refused(outcome, *parts)
    assert "draft worker" not in outcome.stderr


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_faulty_draft(damaged: Pair, damage: str) -> None:
    harm, parts = DAMAGES[damage]
    harm(damaged.draft)
    assert_refused(generate(damaged, standalone=True), "draft worker", str(damaged.draft), *parts)


def test_a_draft_that_does_not_exist(pair: Pair) -> None:
    outcome = generate(Pair(pair.target, Path("/absent/draft")), standalone=True)
    assert_refused(outcome, "speculative_draft_model_path: /absent/draft does not exist")


def swap_tokens(directory: Path) -> None:
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(tokenizer), "utf-8")


def test_a_draft_with_another_vocabulary(damaged: Pair) -> None:
    swap_tokens(damaged.draft)
    outcome = generate(damaged, standalone=True)
    assert_refused(outcome, "speculative_draft_model_path", "another vocabulary", "token id")


def test_a_cache_too_small_for_one_step(pair: Pair) -> None:
    outcome = generate(pair, "--max-total-tokens", "2", standalone=True)
    assert_refused(outcome, "KV cache", "raise kv_cache_memory or max_total_tokens")


def test_a_target_without_a_tokenizer(damaged: Pair) -> None:
    for file in damaged.target.glob("tokenizer*"):
        file.unlink()
    assert_refused(generate(damaged), "tokenizer_path", str(damaged.target))


# Prompts.


def test_a_prompt_longer_than_the_context_is_an_error_object(pair: Pair) -> None:
    outcome = CliRunner().invoke(
        cli,
        [
            *("generate", "word " * 400, "fine", "--json", "--raw"),
            *("--model-path", str(pair.target), *SMALL),
        ],
    )
    assert outcome.exit_code == 1
    refused, fine = (json.loads(line) for line in outcome.stdout.splitlines())
    assert refused["prompt"] == "word " * 400
    assert refused["error"]["type"] == "invalid_request"
    assert f"at most {CONTEXT_LENGTH}" in refused["error"]["message"]
    assert "error" not in fine
    assert fine["completion_tokens"] >= 1


def test_a_refused_prompt_without_json_is_one_line(pair: Pair) -> None:
    arguments = ["generate", "word " * 400, "--raw", "--model-path", str(pair.target), *SMALL]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 1
    assert outcome.stderr.startswith("Error: prompt 1: the prompt has ")
    assert outcome.stderr.count("\n") == 1


# The target after a draft that failed.


@pytest.mark.parametrize("damage", ["truncated weights", "missing tensor", "no config"])
def test_the_target_decodes_after_its_draft_failed(damaged: Pair, damage: str) -> None:
    harm, _ = DAMAGES[damage]
    harm(damaged.draft)
    container: Any = EngineContainer(server_args=damaged.standalone())
    with target_is_untouched(container), pytest.raises(ValueError, match="draft worker"):
        container.scheduler()
    target = container.target.tp_worker()
    assert decode(without_speculation(container)) == damaged.decode_alone()
    assert container.target.tp_worker() is target


def test_the_draft_decodes_after_it_was_mended(damaged: Pair, pair: Pair) -> None:
    truncate(damaged.draft)
    container: Any = EngineContainer(server_args=damaged.standalone())
    with pytest.raises(ValueError, match="draft worker"), open_engine(container):
        pass
    target = container.target.tp_worker()
    shutil.copy(pair.draft / WEIGHTS, damaged.draft / WEIGHTS)
    assert decode(container) == pair.decode_alone()
    assert container.target.tp_worker() is target


# The same in processes of their own.


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )


def test_a_process_ends_with_one_line_and_code_2(damaged: Pair) -> None:
    truncate(damaged.draft)
    done = run(
        *("generate", "hello", "--model-path", str(damaged.target)),
        *("--speculative-algorithm", "STANDALONE"),
        *("--speculative-draft-model-path", str(damaged.draft)),
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("Error: draft worker (STANDALONE, model ")
