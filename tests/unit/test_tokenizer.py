"""The tokenizer: what is a prompt, what is refused, and what a broken tokenizer says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config.server_args import ServerArgs
from app.testing.tokenizers import MIN_BYTE_LEVEL_SIZE, write_tokenizer
from app.tokenizer import NoTokenizer, Tokenizer, load_tokenizer

USER = {"role": "user", "content": "hi"}
ALTERNATING = (
    "{% if messages|length > 1 %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ messages[0]['content'] }}>"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path, MIN_BYTE_LEVEL_SIZE + 10)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer | NoTokenizer:
    return load(directory)


def load(directory: Path, **fields: Any) -> Tokenizer | NoTokenizer:
    return load_tokenizer(ServerArgs(**{"model_path": str(directory), **fields}))


def copy_of(directory: Path, target: Path, **contents: str) -> Path:
    """The tokenizer's files in `target`, some with other contents."""
    for file in directory.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    for stem, content in contents.items():
        (target / f"{stem}.json").write_text(content, "utf-8")
    return target


def test_text_is_the_message_of_a_user(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hi", raw=False) == tokenizer.encode([USER], raw=False)
    assert tokenizer.decode(tokenizer.encode("hi", raw=True)) == "hi"


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), [np.int64(1), np.int32(2)]])
def test_token_ids_are_taken_as_they_are(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    for known in (tokenizer, NoTokenizer()):
        assert known.encode(ids, raw=False) == [1, 2]
        assert all(type(token) is int for token in known.encode(ids, raw=False))


def test_text_parts_are_joined(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    message = {"role": "user", "content": parts}
    assert tokenizer.encode([message], raw=False) == tokenizer.encode([USER], raw=False)


def test_other_keys_of_a_message_reach_the_template(directory: Path) -> None:
    known = load(directory, chat_template="{{ messages[0]['name'] }}")
    assert known.decode(known.encode([{**USER, "name": "Ann"}], raw=False)) == "Ann"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, r"a prompt is a text.*got None"),
        (3, r"a prompt is a text.*got 3"),
        (b"hi", r"a prompt is a text.*got b'hi'"),
        ({"messages": "hi"}, r"a prompt is a text.*got \{'messages': 'hi'\}"),
        ([], "the prompt is empty"),
        ([1, "a"], "token ids must be integers, got 'a'"),
        (["a"], "token ids must be integers, got 'a'"),
        ([True, False], "token ids must be integers, got True"),
        ([1.0], r"token ids must be integers, got 1\.0"),
        ([1, None], "token ids must be integers, got None"),
        ([USER, 1], "a message needs the keys role and content, got 1"),
        ([{"role": "user"}], "a message needs the keys role and content"),
        ([{"role": 1, "content": "a"}], "the role of a message must be a text, got 1"),
        ([{"role": "user", "content": None}], r"the content .* must be a text or .*got None"),
        ([{"role": "user", "content": []}], r"the content .* must be a text or .*got \[\]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "the content of a message"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "the content of a message"),
        ("\ud800", r"not valid Unicode: it holds '\\ud800'"),
        ("a\udcff", r"not valid Unicode: it holds '\\udcff'"),
        ([{"role": "user", "content": "\udfff"}], "not valid Unicode"),
    ],
)
def test_what_is_no_prompt_is_a_value_error(
    tokenizer: Tokenizer, prompt: Any, message: str
) -> None:
    for raw in (False, True):
        with pytest.raises(ValueError, match=message) as caught:
            tokenizer.encode(prompt, raw=raw)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize("prompt", ["hi", [USER], None, [1, "a"], [True], []])
def test_without_a_tokenizer_only_token_ids_are_prompts(prompt: Any) -> None:
    with pytest.raises(ValueError, match=r"prompt|token ids"):
        NoTokenizer().encode(prompt, raw=False)


# Chat templates.


def test_a_template_that_refuses_a_chat_refuses_that_prompt_alone(directory: Path) -> None:
    known = load(directory, chat_template=ALTERNATING)
    with pytest.raises(ValueError, match=r"the chat template refuses.*roles must alternate"):
        known.encode([USER, USER], raw=False)
    assert known.decode(known.encode([USER], raw=False)) == "<hi>"


@pytest.mark.parametrize("fault", ["{{ 1 / 0 }}", "{{ messages[0].content.x.y }}"])
def test_a_template_that_fails_loads_and_refuses_prompts(directory: Path, fault: str) -> None:
    known = load(directory, chat_template=fault)
    with pytest.raises(ValueError, match="the chat template refuses"):
        known.encode([USER], raw=False)
    assert known.encode("hi", raw=True)


@pytest.mark.parametrize("fault", ["{% if %}", "{{ a | no_such_filter }}", "{% nope %}"])
def test_a_template_that_is_no_jinja_is_an_error_of_the_configuration(
    directory: Path, tmp_path: Path, fault: str
) -> None:
    with pytest.raises(ValueError, match=r"^chat_template: line 1 is not valid Jinja"):
        load(directory, chat_template=fault)
    (tmp_path / "t.jinja").write_text(f"\n{fault}", "utf-8")
    with pytest.raises(ValueError, match=r"^chat_template: line 2 is not valid Jinja"):
        load(directory, chat_template=str(tmp_path / "t.jinja"))


def test_a_broken_template_of_a_checkpoint_is_named_and_can_be_replaced(
    directory: Path, tmp_path: Path
) -> None:
    path = copy_of(directory, tmp_path)
    (path / "chat_template.jinja").write_text("{% if %}", "utf-8")
    with pytest.raises(ValueError, match=rf"the chat template of {path}: line 1 is not valid"):
        load(path)
    assert load(path, chat_template="{{ messages[0].content }}").encode("hi", raw=False)


def test_of_several_templates_the_default_one_is_taken(directory: Path, tmp_path: Path) -> None:
    path = copy_of(directory, tmp_path)
    (path / "chat_template.jinja").unlink()
    templates = [
        {"name": "default", "template": "<{{ messages[0]['content'] }}>"},
        {"name": "tool_use", "template": "tools"},
    ]
    config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({**config, "chat_template": templates}), "utf-8"
    )
    known = load(path)
    assert known.decode(known.encode([USER], raw=False)) == "<hi>"


# Where the tokenizer comes from.


def test_an_absent_tokenizer_path_names_its_own_field(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"^tokenizer_path: /nope/x does not exist"):
        load(directory, tokenizer_path="/nope/x")


@pytest.mark.parametrize(
    ("tokenizer_path", "revision", "field"),
    [
        (None, "abc", "model_path"),
        ("org/model", "abc", "model_path"),
        ("org/other", None, "tokenizer_path"),
    ],
)
def test_the_targets_revision_is_that_of_its_own_repository(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer_path: str | None,
    revision: str | None,
    field: str,
) -> None:
    asked: list[tuple[object, ...]] = []

    def resolve(name: str, rev: str | None, _dir: object, *, field: str = "model_path") -> Path:
        asked.append((name, rev, field))
        return directory

    monkeypatch.setattr("app.tokenizer.resolve_model_path", resolve)
    load_tokenizer(
        ServerArgs(model_path="org/model", revision="abc", tokenizer_path=tokenizer_path)
    )
    assert asked == [(tokenizer_path or "org/model", revision, field)]


@pytest.mark.parametrize(
    "contents",
    [
        {"tokenizer_config": "[]"},
        {"tokenizer_config": "{"},
        {"tokenizer": "garbage"},
        {"tokenizer": "{}"},
        {"tokenizer": "[]"},
    ],
    ids=str,
)
def test_broken_files_are_one_line_that_names_the_path(
    directory: Path, tmp_path: Path, contents: dict[str, str]
) -> None:
    path = copy_of(directory, tmp_path, **contents)
    for field, fields in [("model_path", {}), ("tokenizer_path", {"tokenizer_path": str(path)})]:
        with pytest.raises(ValueError, match=f"^{field}: no tokenizer can be read") as caught:
            load(path if field == "model_path" else directory, **fields)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is not None


def test_nothing_is_read_without_a_tokenizer() -> None:
    assert isinstance(load(Path("/nope"), skip_tokenizer_init=True), NoTokenizer)
