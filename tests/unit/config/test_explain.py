from __future__ import annotations

import json

from app.config.explain import explain, render_explanation, server_args_schema
from app.config.server_args import ServerArgs

TARGET = ServerArgs(model_path="m", json_model_override_args={"a": {"b": 1}}, plugins=["p:q"])
DRAFT = TARGET.derive("draft copy: speculative_draft_load_format", {"load_format": "dummy"})


def test_sources_and_differences() -> None:
    explained = json.loads(json.dumps(explain(TARGET, DRAFT)))
    assert explained["target"]["load_format"] == {"value": "auto", "source": "default"}
    assert explained["draft"]["load_format"] == {
        "value": "dummy",
        "source": "draft copy: speculative_draft_load_format",
    }
    assert explained["target"]["json_model_override_args"]["value"] == {"a": {"b": 1}}
    assert explained["target"]["plugins"]["value"] == ["p:q"]
    assert explained["differs"] == ["load_format"]
    assert set(explained["target"]) == set(ServerArgs.model_fields)


def test_target_alone() -> None:
    explained = explain(TARGET, None)
    assert explained["draft"] is None
    assert explained["differs"] == []
    assert "draft" not in render_explanation(TARGET, None)


def test_table_marks_differences_and_leaves_defaults_out() -> None:
    lines = render_explanation(TARGET, DRAFT).splitlines()
    assert lines[0].split() == ["field", "target", "source", "draft", "source"]
    (marked,) = [line for line in lines if line.startswith("*")]
    assert marked.split()[1:4] == ["load_format", "auto", "default"]
    assert not any("page_size" in line for line in lines)
    everything = render_explanation(TARGET, DRAFT, show_all=True).splitlines()
    assert len(everything) == len(ServerArgs.model_fields) + 1


def test_schema_describes_files() -> None:
    schema = json.loads(json.dumps(server_args_schema()))
    properties = schema["properties"]
    assert set(properties) == {"extends", *ServerArgs.model_fields}
    assert "dummy" in properties["load_format"]["enum"]
    assert properties["json_model_override_args"]["default"] == {}
    assert schema["additionalProperties"] is False
