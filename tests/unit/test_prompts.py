"""The project's own prompts: enough of them, of many kinds, and well formed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path


def test_there_are_120_prompts_of_many_kinds(root: Path) -> None:
    lines = (root / "tests/data/prompts.jsonl").read_text("utf-8").splitlines()
    prompts = [json.loads(line) for line in lines]
    assert len(prompts) == 120
    assert len({prompt["id"] for prompt in prompts}) == 120
    assert all(("prompt" in prompt) != ("messages" in prompt) for prompt in prompts)
    contents = [json.dumps(p.get("prompt") or p["messages"]) for p in prompts]
    assert len(set(contents)) == 120
    assert len(Counter(prompt["kind"] for prompt in prompts)) >= 12
    assert sum(len(content.split()) > 250 for content in contents) >= 4
