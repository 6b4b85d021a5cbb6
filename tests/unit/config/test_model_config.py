from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs

from .conftest import WriteCheckpoint


def read(path: str, **fields: Any) -> ModelConfig:
    return ModelConfig.from_server_args(ServerArgs(model_path=path, **fields))


def read_as_draft(path: str, **fields: Any) -> ModelConfig:
    args = ServerArgs(model_path="m").derive(
        "draft copy: test", {"model_path": path, **fields}, as_draft_copy=True
    )
    return ModelConfig.from_server_args(args)


def test_facts_of_a_llama(write_checkpoint: WriteCheckpoint) -> None:
    config = read(write_checkpoint("m"))
    assert config.architecture == "LlamaForCausalLM"
    assert config.dtype == torch.bfloat16
    assert (config.context_len, config.max_position_embeddings) == (4096, 4096)
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (320, 64, 2)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert config.hf_eos_token_ids == (2, 7)
    assert config.quantization is None
    assert not config.has_learned_positions


def test_gpt2_has_learned_positions_under_other_names(write_checkpoint: WriteCheckpoint) -> None:
    config = read(
        write_checkpoint(
            "gpt2",
            model_type="gpt2",
            architectures=["GPT2LMHeadModel"],
            n_positions=128,
            max_position_embeddings=None,
            num_key_value_heads=None,
            torch_dtype=None,
            eos_token_id=5,
        )
    )
    assert config.has_learned_positions
    assert (config.context_len, config.max_position_embeddings) == (128, 128)
    assert config.num_key_value_heads == config.num_attention_heads
    assert config.dtype == torch.float32
    assert config.hf_eos_token_ids == (5,)


@pytest.mark.parametrize(
    ("rope", "positions", "derived"),
    [
        (None, 100, 100),
        ({"rope_type": "linear", "factor": 2.0}, 100, 200),
        ({"type": "dynamic", "factor": 2.0}, 100, 200),
        ({"rope_type": "yarn", "factor": 4.0}, 100, 400),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
            400,
            400,
        ),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 50,
            },
            100,
            100,
        ),
    ],
)
def test_derived_length_knows_rope_scaling(
    write_checkpoint: WriteCheckpoint, rope: dict[str, Any] | None, positions: int, derived: int
) -> None:
    path = write_checkpoint("m", rope_scaling=rope, max_position_embeddings=positions)
    assert read(path).context_len == derived
    assert read(path, context_length=derived).context_len == derived
    assert read(path, context_length=7).context_len == 7


def test_target_length_beyond_the_derived_one_is_an_error_that_says_how(
    write_checkpoint: WriteCheckpoint,
) -> None:
    path = write_checkpoint("m", max_position_embeddings=100)
    with pytest.raises(ValueError, match=r"context_length = 101: .* at most 100 tokens; to allow"):
        read(path, context_length=101)
    longer = read(
        path, context_length=101, json_model_override_args={"max_position_embeddings": 101}
    )
    assert longer.context_len == 101
    learned = write_checkpoint(
        "g", model_type="gpt2", n_positions=100, max_position_embeddings=None
    )
    with pytest.raises(ValueError, match="its positions are learned"):
        read(learned, context_length=101)


def test_draft_is_raised_to_the_targets_length_with_a_warning(
    write_checkpoint: WriteCheckpoint, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_checkpoint("m", max_position_embeddings=32)
    with caplog.at_level(logging.WARNING):
        config = read_as_draft(path, context_length=128)
    assert (config.context_len, config.max_position_embeddings) == (128, 128)
    assert config.hf_config.max_position_embeddings == 128
    assert "max_position_embeddings raised from 32 to the target's context length 128" in (
        caplog.text
    )
    assert json.loads(Path(path, "config.json").read_text())["max_position_embeddings"] == 32


def test_draft_with_learned_positions_keeps_its_own_limit(
    write_checkpoint: WriteCheckpoint,
) -> None:
    path = write_checkpoint("g", model_type="gpt2", n_positions=32, max_position_embeddings=None)
    config = read_as_draft(path, context_length=128)
    assert (config.context_len, config.max_position_embeddings) == (128, 32)
    assert config.has_learned_positions


def test_overrides_reach_what_the_config_derives_from_them(
    write_checkpoint: WriteCheckpoint,
) -> None:
    path = write_checkpoint(
        "q",
        model_type="qwen2",
        architectures=["Qwen2ForCausalLM"],
        num_hidden_layers=3,
        layer_types=["full_attention"] * 3,
        rope_scaling={"rope_type": "linear", "factor": 2.0},
    )
    config = read(
        path,
        json_model_override_args={
            "num_hidden_layers": 2,
            "rope_scaling": {"factor": 4.0},
            "hot_vocab_size": 5,
        },
    )
    hf_config: Any = config.hf_config
    assert config.num_hidden_layers == 2
    assert hf_config.layer_types == ["full_attention"] * 2
    assert hf_config.rope_parameters["rope_type"] == "linear"
    assert hf_config.rope_parameters["factor"] == 4.0
    assert hf_config.hot_vocab_size == 5
    assert read(path).num_hidden_layers == 3


@pytest.mark.parametrize(
    "in_file",
    [
        {"rope_theta": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}},
    ],
)
@pytest.mark.parametrize(
    "override",
    [
        {"rope_theta": 7.0, "rope_scaling": {"factor": 4.0}},
        {"rope_parameters": {"rope_theta": 7.0, "factor": 4.0}},
    ],
)
def test_rope_overrides_work_in_both_spellings(
    write_checkpoint: WriteCheckpoint, in_file: dict[str, Any], override: dict[str, Any]
) -> None:
    path = write_checkpoint("m", **in_file)
    hf_config: Any = read(path, json_model_override_args=override).hf_config
    rope = hf_config.rope_parameters
    assert (rope["rope_theta"], rope["factor"], rope["rope_type"]) == (7.0, 4.0, "linear")


def test_rope_by_kind_of_layer_is_overridden_as_such(write_checkpoint: WriteCheckpoint) -> None:
    kinds = {
        "full_attention": {"rope_type": "default", "rope_theta": 100.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    }
    path = write_checkpoint("m", model_type="gemma3_text", rope_parameters=kinds)
    override = {"rope_parameters": {"full_attention": {"rope_theta": 7.0}}}
    hf_config: Any = read(path, json_model_override_args=override).hf_config
    assert hf_config.rope_parameters["full_attention"]["rope_theta"] == 7.0
    assert hf_config.rope_parameters["sliding_attention"]["rope_theta"] == 10.0
    with pytest.raises(ValueError, match="has rope settings by kind of layer; override rope_par"):
        read(path, json_model_override_args={"rope_theta": 7.0})


def test_two_configs_of_one_path_share_nothing(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m", rope_scaling={"rope_type": "linear", "factor": 2.0})
    one, two = read(path), read(path)
    before = two.hf_config.to_json_string()
    given = AutoConfig.from_pretrained(path)
    three = ModelConfig.from_hf_config(given, ServerArgs(model_path=path), Path(path))
    given_before = given.to_json_string()
    for config in (one, three):
        hf_config: Any = config.hf_config
        hf_config.rope_parameters["factor"] = 9.0
        hf_config.architectures[0] = "Other"
    assert two.hf_config.to_json_string() == before
    assert given.to_json_string() == given_before


@pytest.mark.parametrize(
    ("declared", "asked", "expected"),
    [
        (None, None, torch.float32),
        ("float16", "auto", torch.float16),
        ("float16", "bfloat16", torch.bfloat16),
    ],
)
def test_dtype(
    write_checkpoint: WriteCheckpoint, declared: str | None, asked: str | None, expected: Any
) -> None:
    path = write_checkpoint("m", torch_dtype=declared)
    assert read(path, **({} if asked is None else {"dtype": asked})).dtype == expected


@pytest.mark.parametrize(
    ("declared", "asked", "expected"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None, "modelopt_fp4"),
        ({"quant_method": "modelopt_fp4"}, None, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "unquant", None),
        ({"quant_method": "gptq", "bits": 4}, "unquant", None),
        (None, "modelopt_fp4", "modelopt_fp4"),
        (None, None, None),
    ],
)
def test_quantization(
    write_checkpoint: WriteCheckpoint,
    declared: dict[str, object] | None,
    asked: str | None,
    expected: str | None,
) -> None:
    path = write_checkpoint("m", quantization_config=declared)
    assert read(path, quantization=asked).quantization == expected


def test_quantization_of_modelopts_own_file(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m")
    own = Path(path, "hf_quant_config.json")
    own.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert read(path).quantization == "modelopt_fp4"
    own.write_text(json.dumps({"quantization": {"quant_algo": None}}))
    assert read(path).quantization is None
    own.write_text("{}")
    with pytest.raises(ValueError, match=r"hf_quant_config\.json: cannot be read"):
        read(path)


@pytest.mark.parametrize(
    ("changes", "fields", "message"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, {}, "quantization 'gptq' is not supp"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
            {"quantization": "modelopt_fp4"},
            "quantization = 'modelopt_fp4': the checkpoint",
        ),
        ({"torch_dtype": "float64"}, {}, ": its dtype float64 is not supported; set dt"),
        ({"model_type": None}, {}, "config.json: model_type is missing"),
        ({"architectures": None}, {}, "config.json (llama): architectures is missing"),
        ({"num_hidden_layers": "two"}, {}, "config.json: "),
        (
            {"model_type": "unheard_of", "num_attention_heads": None},
            {},
            "it has no num_attention_heads",
        ),
        ({"model_type": "unheard_of", "vocab_size": None}, {}, "it has no vocab_size, so it is no"),
        (
            {"model_type": "unheard_of", "max_position_embeddings": None},
            {},
            "it gives no max_position_embeddings; set context_length",
        ),
    ],
)
def test_faulty_configs(
    write_checkpoint: WriteCheckpoint,
    changes: dict[str, object],
    fields: dict[str, object],
    message: str,
) -> None:
    path = write_checkpoint("m", **changes)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        read(path, **fields)
    assert message in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config\.json: no such file"),
        ("{", r"config\.json: cannot be read as JSON"),
        ("[]", r"config\.json: must hold a JSON object, got list"),
    ],
)
def test_unreadable_configs(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path))


def test_unknown_model_type_keeps_its_values(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m", model_type="ours", architectures=["OursForCausalLM"], num_extra=3)
    config = read(path)
    assert config.architecture == "OursForCausalLM"
    assert config.hf_config.num_extra == 3
    assert config.head_dim == 16


def _write_remote_code(path: str, marker: Path) -> None:
    Path(path, "configuration_ours.py").write_text(
        "from pathlib import Path\n"
        "from transformers import PretrainedConfig\n"
        f"Path({str(marker)!r}).touch()\n"
        "class OursConfig(PretrainedConfig):\n"
        "    model_type = 'ours'\n"
    )


def test_a_checkpoints_code_runs_only_when_trusted(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    path = write_checkpoint(
        "ours", model_type="ours", auto_map={"AutoConfig": "configuration_ours.OursConfig"}
    )
    marker = tmp_path / "marker"
    _write_remote_code(path, marker)
    with pytest.raises(ValueError, match="set trust_remote_code to true"):
        read(path)
    with pytest.raises(ValueError, match="set speculative_draft_trust_remote_code to true"):
        ModelConfig.from_server_args(
            ServerArgs(model_path=path).derive(
                "draft copy: speculative_draft_trust_remote_code",
                {"trust_remote_code": False},
                record_unchanged=True,
                as_draft_copy=True,
            )
        )
    assert not marker.exists()
    config = read(path, trust_remote_code=True, json_model_override_args={"vocab_size": 321})
    assert marker.exists()
    assert type(config.hf_config).__name__ == "OursConfig"
    assert config.vocab_size == 321


def test_known_type_with_code_is_read_without_it(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    path = write_checkpoint("m", auto_map={"AutoConfig": "configuration_ours.OursConfig"})
    marker = tmp_path / "marker"
    _write_remote_code(path, marker)
    assert read(path).architecture == "LlamaForCausalLM"
    assert not marker.exists()


def test_model_config_can_be_copied(write_checkpoint: WriteCheckpoint) -> None:
    config = read(write_checkpoint("m"))
    assert copy.deepcopy(config).hf_config is not config.hf_config


def test_eos_ids_of_the_generation_config_count_too(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m", eos_token_id=2)
    file = Path(path) / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert read(path).hf_eos_token_ids == (2, 7)
    file.write_text(json.dumps({"eos_token_id": 5}))
    assert read(path).hf_eos_token_ids == (2, 5)
    file.write_text(json.dumps({"temperature": 0.6}))
    assert read(path).hf_eos_token_ids == (2,)
    for content, message in (
        ("{", "cannot be read as JSON"),
        ('{"eos_token_id": "x"}', "token ids"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=message) as caught:
            read(path)
        assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"quantization_config": "x"}, "quantization_config"),
        ({"architectures": [3]}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"eos_token_id": "two"}, "eos_token_id"),
        ({"hidden_size": -4}, "hidden_size"),
    ],
)
def test_values_that_no_model_can_have_are_one_line_with_the_file(
    write_checkpoint: WriteCheckpoint, changes: dict[str, object], message: str
) -> None:
    path = write_checkpoint("m", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        read(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, '"text"', "nonsense"])
def test_a_config_that_is_no_object_is_named(
    write_checkpoint: WriteCheckpoint, content: str
) -> None:
    path = write_checkpoint("m")
    (Path(path) / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_an_override_that_nothing_reads_warns_with_the_nearest_name(
    write_checkpoint: WriteCheckpoint, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_checkpoint("m")
    read(path, json_model_override_args={"num_hidden_layerz": 1, "rope_theta": 5.0})
    (record,) = caplog.records
    assert "num_hidden_layerz has no effect" in record.getMessage()
    assert "did you mean 'num_hidden_layers'?" in record.getMessage()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rope_theta": "abc"}, "rope_theta must be a number above 0, got 'abc'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "rope_scaling.factor must be"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("inf")}}, "factor must be"),
        ({"rope_scaling": "linear"}, "rope_scaling must be a JSON object, got 'linear'"),
        ({"hidden_act": 3}, "hidden_act must be a text, got 3"),
        ({"max_position_embeddings": "x"}, "max_position_embeddings must be a whole number"),
        ({"attention_bias": "x"}, "attention_bias expected bool, got str"),
    ],
)
def test_faulty_overrides_name_value_file_and_setting(
    write_checkpoint: WriteCheckpoint, overrides: dict[str, object], message: str
) -> None:
    path = write_checkpoint("m")
    for field, reader in (
        ("json_model_override_args", read),
        ("speculative_draft_json_model_override_args", _read_overridden_draft),
    ):
        with pytest.raises(ValueError, match=rf"^{path}/config\.json: ") as caught:
            reader(path, json_model_override_args=overrides)
        assert message in str(caught.value)
        assert f"(set by {field})" in str(caught.value)
        assert "\n" not in str(caught.value)


def _read_overridden_draft(path: str, **fields: Any) -> ModelConfig:
    source = "draft copy: speculative_draft_json_model_override_args"
    args = ServerArgs(model_path=path).derive(source, fields, as_draft_copy=True)
    return ModelConfig.from_server_args(args)


def test_a_faulty_value_of_the_file_may_be_overridden(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m", num_attention_heads=0)
    config = read(path, json_model_override_args={"num_attention_heads": 4})
    assert config.num_attention_heads == 4


def test_heads_that_do_not_divide_are_refused(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m", num_key_value_heads=3)
    with pytest.raises(ValueError, match="not a multiple of num_key_value_heads = 3"):
        read(path)


def test_modelopts_own_file_is_read_as_strictly(write_checkpoint: WriteCheckpoint) -> None:
    path = write_checkpoint("m")
    own = Path(path, "hf_quant_config.json")
    for content in ("[]", "[" * 100_000, '{"quantization": "NVFP4"}', "{"):
        own.write_text(content)
        with pytest.raises(ValueError, match=rf"^{own}: ") as caught:
            read(path)
        assert "\n" not in str(caught.value)
