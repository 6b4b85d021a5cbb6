"""load_weights: names, fusion, ties, dtypes, and its words for a checkpoint that does not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from app.loading.weight_utils import load_weights


@pytest.mark.parametrize("is_tied", [False, True])
def test_every_tensor_reaches_its_place(toy: SimpleNamespace, is_tied: bool) -> None:
    model, tensors = toy.build(is_tied=is_tied), toy.tensors(is_tied=is_tied)
    load_weights(model, tensors.items())
    toy.assert_state(model, tensors)


def test_order_of_the_tensors_does_not_matter(toy: SimpleNamespace) -> None:
    model, tensors = toy.build(), toy.tensors()
    load_weights(model, reversed(tensors.items()))
    toy.assert_state(model, tensors)


def test_tied_tensors_stay_one_object(toy: SimpleNamespace) -> None:
    model = toy.build(is_tied=True)
    load_weights(model, toy.tensors(is_tied=True).items())
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_tied_head_in_the_checkpoint_is_dropped(toy: SimpleNamespace) -> None:
    model, tensors = toy.build(is_tied=True), toy.tensors(is_tied=True)
    load_weights(model, [*tensors.items(), ("lm_head.weight", torch.zeros(3))])
    toy.assert_state(model, tensors)


def test_weights_take_the_dtype_of_the_model(toy: SimpleNamespace) -> None:
    model, tensors = toy.build(dtype=torch.bfloat16), toy.tensors()
    load_weights(model, tensors.items())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    toy.assert_state(model, tensors)


def test_the_model_owns_its_memory(toy: SimpleNamespace) -> None:
    model, tensors = toy.build(), toy.tensors()
    load_weights(model, tensors.items())
    tensors["model.norm.weight"].zero_()
    assert model.model.norm.weight.any()


def test_missing_and_left_over_tensors_are_named(toy: SimpleNamespace) -> None:
    tensors = toy.tensors()
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    del tensors["model.norm.weight"]
    tensors["model.layers.1.self_attn.k_proj.weight_scale"] = torch.ones(1)
    tensors["visual.patch.weight"] = torch.ones(1)
    with pytest.raises(ValueError, match="does not fit ToyLlama") as error:
        load_weights(toy.build(), tensors.items(), source="/models/broken")
    message = str(error.value)
    assert message.startswith("/models/broken")
    missing, left_over = message.split("left over")
    assert "model.layers.1.self_attn.k_proj.weight, model.norm.weight" in missing
    assert "k_proj.weight_scale, visual.patch.weight" in left_over
    assert "q_proj.weight" not in message


def test_at_most_five_names_are_listed(toy: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="and 16 more"):
        load_weights(toy.build(), [])


def test_wrong_shapes_name_tensor_expected_and_got(toy: SimpleNamespace) -> None:
    tensors = toy.tensors()
    tensors["model.layers.0.self_attn.v_proj.weight"] = torch.zeros(8, 64)
    with pytest.raises(ValueError, match=r"v_proj\.weight \(expected \[32, 64\], got \[8, 64\]\)"):
        load_weights(toy.build(), tensors.items())


def test_a_broadcastable_shape_is_no_fit(toy: SimpleNamespace) -> None:
    tensors = toy.tensors()
    tensors["model.norm.weight"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"model\.norm\.weight \(expected \[64\], got \[1\]\)"):
        load_weights(toy.build(), tensors.items())


def test_packed_integers_do_not_become_floats(toy: SimpleNamespace) -> None:
    tensors = toy.tensors()
    tensors["model.norm.weight"] = torch.zeros(64, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"expected torch\.float32, got torch\.uint8"):
        load_weights(toy.build(), tensors.items())


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_a_tensor_given_twice_is_an_error(toy: SimpleNamespace, name: str) -> None:
    tensors = toy.tensors()
    with pytest.raises(ValueError, match=f"given twice: {name}"):
        load_weights(toy.build(), [*tensors.items(), (name, tensors[name])])


def test_persistent_buffers_count(toy: SimpleNamespace) -> None:
    with torch.device("meta"):
        module = nn.Module()
        module.register_buffer("scale", torch.empty(3))
    module.register_buffer("computed", torch.ones(2), persistent=False)
    with pytest.raises(ValueError, match="missing from the checkpoint: scale"):
        load_weights(module, [])
    load_weights(module, [("scale", torch.arange(3.0))])
    assert module.scale.tolist() == [0, 1, 2]
    assert not isinstance(module.scale, nn.Parameter)
