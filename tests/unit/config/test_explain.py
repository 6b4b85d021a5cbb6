from __future__ import annotations

import json

from app.config.explain import explain, server_args_schema
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


def test_schema_describes_files() -> None:
    schema = json.loads(json.dumps(server_args_schema()))
    properties = schema["properties"]
    assert set(properties) == {"extends", *ServerArgs.model_fields}
    assert "dummy" in properties["load_format"]["enum"]
    assert properties["json_model_override_args"]["default"] == {}
    assert schema["additionalProperties"] is False
