from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.frozen_mapping import freeze, parse_mapping, thaw
from app.config.server_args import ServerArgs

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), JSON_VALUES))
def test_thaw_undoes_freeze(mapping: dict[str, object]) -> None:
    frozen = freeze(mapping)
    assert thaw(frozen) == mapping
    assert hash(frozen) == hash(freeze(dict(reversed(mapping.items()))))
    assert parse_mapping(json.dumps(mapping)) == frozen


def test_list_of_pairs_is_not_mistaken_for_a_mapping() -> None:
    assert thaw(freeze({"a": [["x", 1]]})) == {"a": [["x", 1]]}


def test_mappings_are_tuples_of_pairs_that_the_giver_cannot_change() -> None:
    given_mapping = {"rope_scaling": {"factor": 2.0}}
    args = ServerArgs(model_path="m", json_model_override_args=given_mapping)
    given_mapping["rope_scaling"]["factor"] = 3.0
    assert args.json_model_override_args == (("rope_scaling", (("factor", 2.0),)),)


def test_copies_round_trip_values_and_sources() -> None:
    args = ServerArgs(
        model_path="m", json_model_override_args='{"a": {"b": [1]}}', plugins=["p:q"]
    ).derive("test", {"page_size": 16})
    for other in (copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert other == args
        assert hash(other) == hash(args)
        assert other.sources == args.sources
    assert ServerArgs(**args.model_dump()) == args
    assert ServerArgs(**json.loads(args.model_dump_json())) == args


def test_equality_is_on_values_and_not_on_sources() -> None:
    args = ServerArgs(model_path="m", page_size=16)
    assert args == ServerArgs(model_path="m").derive("test", {"page_size": 16})
    assert args != ServerArgs(model_path="m")


def test_derive_records_the_source_of_changed_fields_only() -> None:
    args = ServerArgs(model_path="m", dtype="bfloat16")
    derived = args.derive("first", {"page_size": 16, "dtype": "bfloat16"})
    derived = derived.derive("second", {"chunked_prefill_size": 64})
    assert derived.sources["page_size"] == "first"
    assert derived.sources["chunked_prefill_size"] == "second"
    assert derived.sources["dtype"] == "argument"
    assert derived.sources["load_format"] == "default"
    assert args.page_size == 1
    assert args.sources["page_size"] == "default"


def test_derive_validates_and_leaves_the_record_alone() -> None:
    args = ServerArgs(model_path="m")
    with pytest.raises(ValueError, match=r"^page_size = 3 \(rule x\): must be a power of two"):
        args.derive("rule x", {"context_length": 8, "page_size": 3})
    with pytest.raises(ValueError, match="rule x: unknown field 'pagesize'; did you mean 'page_s"):
        args.derive("rule x", {"context_length": 8, "pagesize": 3})
    assert args.context_length is None


def test_fields_cannot_be_assigned() -> None:
    args = ServerArgs(model_path="m")
    with pytest.raises(ValueError, match="frozen"):
        args.page_size = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "model_path is required: set it in the configuration file, by --model-path or by"),
        ({"model_path": "m", "modle_path": "x"}, "unknown field 'modle_path'; did you mean 'mod"),
        ({"model_path": 3}, "model_path = 3: input should be a valid string"),
        ({"model_path": "m", "dtype": "bf16"}, "dtype = 'bf16': input should be 'auto', 'float32"),
        ({"model_path": "m", "page_size": True}, "page_size = True: must not be true or false"),
        ({"model_path": "m", "page_size": 0}, "page_size = 0: must be a power of two"),
        ({"model_path": "m", "chunked_prefill_size": 0}, "must be at least 1, or -1"),
        ({"model_path": "m", "chunked_prefill_size": -2}, "must be at least 1, or -1"),
        ({"model_path": "m", "kv_cache_memory": "lots"}, 'a size such as "512MiB"'),
        ({"model_path": "m", "kv_cache_memory": 0}, "kv_cache_memory = 0: input should be greater"),
        ({"model_path": "m", "load_format": "layred"}, "did you mean 'layered'?"),
        ({"model_path": "m", "load_format": "bitsandbytes"}, "not supported by this build: use"),
        ({"model_path": "m", "speculative_draft_load_format": "remote"}, "not supported by this"),
        ({"model_path": "m", "json_model_override_args": "{"}, "must be a mapping or a JSON obj"),
        ({"model_path": "m", "speculative_accept_threshold_acc": 0}, "should be greater than 0"),
        ({"model_path": "m", "speculative_accept_threshold_single": 1.5}, "less than or equal"),
        ({"model_path": "m", "speculative_ngram_max_trie_depth": 1}, "greater than or equal to 2"),
        ({"model_path": "m", "speculative_ngram_capacity": 0}, "should be greater than 0"),
        ({"model_path": "m", "context_length": 0}, "should be greater than 0"),
    ],
)
def test_faults_are_one_line_that_names_field_and_remedy(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        ServerArgs(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("1GiB", 1 << 30), ("2GB", 2 * 10**9), ("1.5k", 1500), ("77", 77)],
)
def test_sizes(text: str, size: int) -> None:
    assert ServerArgs(model_path="m", kv_cache_memory=text).kv_cache_memory == size


def test_every_field_is_described() -> None:
    assert [f for f, info in ServerArgs.model_fields.items() if not info.description] == []
