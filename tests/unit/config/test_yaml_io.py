from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.config.server_args import ServerArgs
from app.config.yaml_io import load_server_args


def load(
    path: Path | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
    settings: tuple[str, ...] = (),
) -> ServerArgs:
    return load_server_args(path, environ or {}, flags or {}, settings)


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_every_layer_beats_the_one_below_and_is_remembered(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "model_path: base\npage_size: 2\ncontext_length: 64\nrevision: r1")
    config = write(
        tmp_path,
        "sub/run.yaml",
        "extends: ../base.yaml\npage_size: 4\nchunked_prefill_size: 8\ndtype: float32\n",
    )
    args = load(
        config,
        environ={"DRAFTSCOPE_CHUNKED_PREFILL_SIZE": "16", "DRAFTSCOPE_DTYPE": "bfloat16"},
        flags={"dtype": "float16", "load_format": "pt", "plugins": (), "device": None},
        settings=("load-format=dummy",),
    )
    base = str(tmp_path / "base.yaml")
    expected: dict[str, tuple[object, str]] = {
        "model_path": ("base", base),
        "revision": ("r1", base),
        "page_size": (4, str(config)),
        "chunked_prefill_size": (16, "env DRAFTSCOPE_CHUNKED_PREFILL_SIZE"),
        "dtype": ("float16", "flag --dtype"),
        "load_format": ("dummy", "--set load_format"),
        "plugins": ((), "default"),
        "device": ("auto", "default"),
    }
    assert {f: (getattr(args, f), args.sources[f]) for f in expected} == expected


def test_lists_and_mappings_replace(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "model_path: m\nplugins: [a:x, b:y]\n"
          "json_model_override_args: {x: 1, y: 2}\n")  # fmt: skip
    config = write(
        tmp_path, "b.yaml", "extends: a.yaml\nplugins: [c:z]\njson_model_override_args: {x: 3}\n"
    )
    args = load(config)
    assert args.plugins == ("c:z",)
    assert args.json_model_override_args == (("x", 3),)


def test_empty_file_is_fine(tmp_path: Path) -> None:
    config = write(tmp_path, "a.yaml", "# nothing yet\n")
    assert load(config, flags={"model_path": "m"}) == ServerArgs(model_path="m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model_path: m\npagesize: 2",
            "{file}: unknown field 'pagesize'; did you mean 'page_size'",
        ),
        ("model_path: m\npage_size: 3", "page_size = 3 ({file}): must be a power of two"),
        ("page_size: 2\npage_size: 2", "{file}, line 2: key 'page_size' is given twice"),
        ("json_model_override_args:\n  a: 1\n  a: 2", "{file}, line 3: key 'a' is given twice"),
        ("json_model_override_args: {1: 2}", "{file}, line 1: key 1 must be a string"),
        ("- a\n- b", "{file}: must hold `field: value` lines, got a list at top level"),
        ("a: [1", "{file}, line 1: "),
        ("extends: [a, b]", "{file}: extends: must be the path of one file"),
        ("extends: gone.yaml", "{file}: extends: {directory}/gone.yaml does not exist"),
        ("extends: ./a.yaml", "{file}: extends: files extend each other: {file} -> "),
        ("page_size: 2", "model_path is required"),
        ("\nmodel_path: 2024-13-45", "{file}, line 2: month must be in 1..12"),
        ("model_path: m\npage_size: !!int foo", "{file}, line 2: invalid literal"),
        ("model_path: m\njson_model_override_args: &a {x: *a}", "{file}, line 2: *a contains its"),
        ("model_path: m\npage_size: !!bool foo", "{file}, line 2: 'foo' is no bool"),
        ("model_path: m\npage_size: !!timestamp foo", "{file}, line 2: 'foo' is no timestamp"),
        ("model_path: m\nplugins: &a [*a]", "{file}, line 2: *a contains itself"),
        ("model_path: m\npage_size: " + "1" * 5000, "{file}, line 2: Exceeds the limit"),
        ("a: " + "[" * 5000, "{file}: not valid YAML"),
        ("model_path: m\ndevice: !!python/object/apply:os.getcwd []", "{file}, line 2: could not"),
    ],
)
def test_faulty_files(tmp_path: Path, text: str, message: str) -> None:
    config = write(tmp_path, "a.yaml", text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        load(config)
    assert message.format(file=config, directory=tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cycle_through_another_file(tmp_path: Path) -> None:
    config = write(tmp_path, "a.yaml", "extends: b.yaml")
    write(tmp_path, "b.yaml", "extends: c.yaml")
    write(tmp_path, "c.yaml", "extends: a.yaml")
    with pytest.raises(ValueError, match=r"a\.yaml -> .*b\.yaml -> .*c\.yaml -> .*a\.yaml"):
        load(config)


def test_missing_and_undecodable_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.yaml: no such configuration file"):
        load(tmp_path / "gone.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ValueError, match=r"b\.yaml: cannot be read"):
        load(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("page_size=16", "page_size", 16),
        ("trust_remote_code=true", "trust_remote_code", True),
        ("revision=1234567", "revision", "1234567"),
        ("revision=2024-01-01", "revision", "2024-01-01"),
        ("revision=null", "revision", None),
        ("speculative_draft_load_format=dummy", "speculative_draft_load_format", "dummy"),
        ("chat_template={% if x %}: #{{ y }}", "chat_template", "{% if x %}: #{{ y }}"),
        ("kv_cache_memory=1GiB", "kv_cache_memory", 1 << 30),
        ("plugins=[a:b, c:d]", "plugins", ("a:b", "c:d")),
        ("json_model_override_args={a: {b: 1}}", "json_model_override_args", (("a", (("b", 1),)),)),
        ("speculative_accept_threshold_acc=1e-1", "speculative_accept_threshold_acc", 0.1),
    ],
)
def test_text_is_typed_by_yaml_and_by_the_field(setting: str, field: str, value: object) -> None:
    from_set = load(flags={"model_path": "m"}, settings=(setting,))
    assert getattr(from_set, field) == value
    variable, _, text = setting.partition("=")
    from_environment = load(
        environ={"DRAFTSCOPE_" + variable.upper(): text}, flags={"model_path": "m"}
    )
    assert getattr(from_environment, field) == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("page_size", "--set page_size: write it as key=value"),
        ("pagesize=2", "--set pagesize: unknown field 'pagesize'; did you mean 'page_size'?"),
        ("page_size=3", "page_size = 3 (--set page_size): must be a power of two"),
        ("page_size=[1", "--set page_size, line 1: "),
    ],
)
def test_faulty_settings(setting: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        load(flags={"model_path": "m"}, settings=(setting,))
    assert message in str(caught.value)


def test_unknown_environment_names_warn(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "DRAFTSCOPE_PAGESIZE": "2",
        "DRAFTSCOPE_CACHE": "/tmp/x",
        "DRAFTSCOPE_PAGE_SIZE": "",
        "PAGE_SIZE": "2",
    }
    with caplog.at_level(logging.WARNING):
        args = load(environ=environ, flags={"model_path": "m"})
    assert args.page_size == 1
    assert [record.getMessage() for record in caplog.records] == [
        "DRAFTSCOPE_PAGESIZE is set but names no field; did you mean DRAFTSCOPE_PAGE_SIZE?"
    ]


def test_faulty_environment_value_names_the_variable() -> None:
    with pytest.raises(ValueError, match=r"page_size = 3 \(env DRAFTSCOPE_PAGE_SIZE\): must be"):
        load(environ={"DRAFTSCOPE_PAGE_SIZE": "3"}, flags={"model_path": "m"})


def test_an_alias_beside_what_it_names_is_fine(tmp_path: Path) -> None:
    config = write(
        tmp_path, "a.yaml", "model_path: m\njson_model_override_args: {x: &a [1], y: *a}\n"
    )
    assert load(config).json_model_override_args == (("x", (1,)), ("y", (1,)))


@pytest.mark.parametrize("text", ['{"a": ' * 500 + "1" + "}" * 500, "[" * 100_000])
def test_overrides_nested_beyond_reason_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"json_model_override_args = .*nested deeper than 64"):
        ServerArgs(model_path="m", json_model_override_args=text)  # type: ignore[arg-type]


def test_a_size_beyond_any_machine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_memory = .*less than"):
        ServerArgs(model_path="m", kv_cache_memory="9" * 400 + "TiB")  # type: ignore[arg-type]
