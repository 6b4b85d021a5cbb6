"""Rotary settings in both spellings, and tables that stay real while a model is built on meta."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from app.layers.rope_parameters import RopeParameters, read_rope_parameters
from app.layers.rotary_embedding import RotaryEmbedding


def config(**values: object) -> SimpleNamespace:
    return SimpleNamespace(**{"max_position_embeddings": 64, **values})


def test_old_and_new_spelling_say_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 16
    old = config(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **scaling})
    new = config(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert read_rope_parameters(old) == read_rope_parameters(new)
    oldest = config(rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0})
    assert read_rope_parameters(oldest).kind == "linear"
    assert read_rope_parameters(config(rope_theta=7.0)).theta == 7.0
    assert read_rope_parameters(config()).kind == "default"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_type": "longrope"}, r"rope_type 'longrope'.*default, dynamic, linear"),
        ({"rope_type": "linear"}, "needs a factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"full_attention": {"rope_type": "default"}}, "differ by layer"),
    ],
)
def test_what_is_not_computed_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rope_parameters(config(rope_parameters=values))


def make_rotary(dtype: torch.dtype = torch.float32) -> RotaryEmbedding:
    rope = RopeParameters(kind="default", theta=1e4, original_length=64)
    return RotaryEmbedding(rope, head_dim=8, context_len=64, dtype=dtype)


def test_tables_are_real_under_the_meta_device() -> None:
    with torch.device("meta"):
        rotary = make_rotary()
    assert torch.equal(rotary.cos, make_rotary().cos)
    # Draft trees reach past a full context.
    assert rotary.cos.shape == (64 + 128, 4)
    assert rotary.cos.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_in_place_has_transformers_roundings(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    positions = torch.tensor([5, 0, 63])
    heads = torch.randn(3, 2, 8).to(dtype)
    angles = positions[:, None] * (1e4 ** -(torch.arange(0, 8, 2) / 8))
    cos, sin = (torch.cat((f, f), -1)[None].to(dtype) for f in (angles.cos(), angles.sin()))
    q = heads.transpose(0, 1)[None]
    expected = apply_rotary_pos_emb(q, q, cos, sin)[0][0].transpose(0, 1)
    make_rotary(dtype)(positions).apply_(heads)
    torch.testing.assert_close(heads, expected, atol=1e-6, rtol=1e-6)
