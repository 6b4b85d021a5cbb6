"""GGUF files: the same tensors as transformers' reader gives, and clear words for broken ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from app.loading.gguf_reader import open_gguf, transformers_name, unpermute_rows

HEADS, KV_HEADS = 4, 2


def _permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's converter: row (head, half, i) goes to (head, i, half)."""
    head_dim = weight.shape[0] // num_heads
    order = [
        head * head_dim + half * (head_dim // 2) + i
        for head in range(num_heads)
        for i in range(head_dim // 2)
        for half in range(2)
    ]
    return weight[order]


def write_gguf(
    path: Path,
    tensors: dict[str, torch.Tensor],
    *,
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: dict[str, np.ndarray] | None = None,
) -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if architecture == "llama" and "q_proj" in name:
            values = _permuted(values, HEADS)
        if architecture == "llama" and "k_proj" in name:
            values = _permuted(values, KV_HEADS)
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        assert gguf_name is not None
        if values.ndim == 1:
            writer.add_tensor(gguf_name, values)
        else:
            writer.add_tensor(gguf_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("load_format", ["auto", "gguf"])
def test_tensors_equal_those_of_the_other_formats(
    toy: SimpleNamespace, tmp_path: Path, load_format: str
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, toy.tensors())
    toy.assert_state(toy.load(path, load_format), toy.tensors())


def test_a_directory_with_one_gguf_file_is_read(toy: SimpleNamespace, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", toy.tensors())
    toy.assert_state(toy.load(tmp_path, "gguf"), toy.tensors())
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ValueError, match=r"needs one \.gguf file.*other\.gguf, tiny\.gguf"):
        toy.load(tmp_path, "gguf")


def test_qwen_rows_are_not_permuted(toy: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, toy.tensors(), architecture="qwen2")
    toy.assert_state(toy.load(path, "gguf"), toy.tensors())


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_quantised_tensors_equal_those_of_transformers(
    toy: SimpleNamespace, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, toy.tensors(), kind=gguf.GGMLQuantizationType[kind])
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    reference = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    found = dict(open_gguf(path).weights(torch.bfloat16))
    assert found.keys() == reference.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, torch.as_tensor(reference[name]).bfloat16()), name


def test_long_tensors_are_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    embedding = torch.randn(9001, 32)
    write_gguf(path, {"model.embed_tokens.weight": embedding})
    found = dict(open_gguf(path).weights(torch.float32))
    assert torch.equal(found["model.embed_tokens.weight"], embedding)


def test_unpermute_undoes_the_permutation_of_biases_too() -> None:
    bias = np.arange(64.0)
    permuted = torch.from_numpy(_permuted(bias, HEADS))
    assert unpermute_rows(permuted, HEADS).tolist() == bias.tolist()


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "cls.bias"])
def test_unknown_names_stay_what_they_are(name: str) -> None:
    assert transformers_name(name) == name


def test_rope_factors_need_a_config_that_says_so(toy: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, toy.tensors(), extra={"rope_freqs.weight": np.ones(8, np.float32)})
    with pytest.raises(ValueError, match=r"rope_freqs\.weight.*json_model_override_args"):
        toy.load(path, "gguf")


def test_unsupported_architecture_is_named(toy: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, toy.tensors(), architecture="falcon")
    with pytest.raises(ValueError, match=r"tiny\.gguf: GGUF architecture 'falcon'.*llama"):
        toy.load(path, "gguf")


@pytest.mark.parametrize("num_bytes", [0, 3, 20, 600, -2000])
def test_truncated_file_is_named(toy: SimpleNamespace, tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, toy.tensors())
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=r"tiny\.gguf: not a readable GGUF file"):
        toy.load(path, "gguf")
