"""Which class runs which architecture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from app.models.llama import LlamaForCausalLM
from app.models.qwen3 import Qwen3ForCausalLM
from app.models.registry import resolve_model_class


def model_config(architecture: str, model_type: str) -> Any:
    hf_config = CONFIG_MAPPING[model_type](architectures=[architecture])
    return SimpleNamespace(
        architecture=architecture, hf_config=hf_config, model_path="/models/some"
    )


def test_native_models_are_preferred() -> None:
    assert (
        resolve_model_class(model_config("LlamaForCausalLM", "llama"), "auto") is LlamaForCausalLM
    )
    assert (
        resolve_model_class(model_config("Qwen3ForCausalLM", "qwen3"), "native") is Qwen3ForCausalLM
    )


@pytest.mark.parametrize(
    ("architecture", "model_type", "model_impl"),
    [("LlamaForCausalLM", "llama", "transformers"), ("GPT2LMHeadModel", "gpt2", "auto")],
)
def test_transformers_serves_the_rest_and_on_demand(
    architecture: str, model_type: str, model_impl: str
) -> None:
    model_class = resolve_model_class(model_config(architecture, model_type), model_impl)
    assert model_class.__name__ == "TransformersForCausalLM"


def test_native_alone_refuses_others_naming_those_it_knows() -> None:
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        resolve_model_class(model_config("GPT2LMHeadModel", "gpt2"), "native")


def test_what_nothing_can_run_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"T5ForConditionalGeneration.*native architectures"):
        resolve_model_class(model_config("T5ForConditionalGeneration", "t5"), "auto")
