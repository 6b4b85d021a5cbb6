"""The command line as a process: signals, pipes and encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from app.testing.checkpoints import write_checkpoint


def test_text_survives_what_the_output_cannot_encode() -> None:
    code = "from app.commands.output import print_text; print_text(chr(233) + chr(0xD800))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().strip() == "??"


SLOW_PULL = """
import sys, time
import app.loading.model_zoo as zoo
def pull(name):
    print("started", flush=True)
    time.sleep(60)
zoo.pull_model = pull
from app.cli import cli
cli(["models", "pull", "x"])
"""


def test_an_interrupt_ends_without_a_traceback(root: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_PULL],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Traceback" not in errors


def test_a_closed_pipe_ends_without_a_traceback(root: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "config", "schema"],
        cwd=root,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    os.close(reader)
    _, errors = process.communicate(timeout=20)
    assert errors == ""


def test_a_refusal_is_one_line_in_a_fresh_process_too(tmp_path: Path) -> None:
    """transformers has a handler of its own, which a test in this process would not see."""
    checkpoint = write_checkpoint(tmp_path / "model")
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    config["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 1e4}
    (checkpoint / "config.json").write_text(json.dumps(config), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "app", "generate", "--model-path", str(checkpoint), "hello"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "rope_type 'spiral'" in done.stderr
