"""Logits of the transformers backend against transformers itself, on tiny random checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.attention.registry import create_attention_backend
from app.config.model_config import ModelConfig
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.engine import open_engine
from app.loading.weight_utils import load_weights
from app.memory.token_to_kv_pool import TokenToKVPool
from app.models.transformers_backend import TransformersForCausalLM
from app.models.transformers_support import check_supported
from app.testing.checkpoints import randomize, write_checkpoint
from app.testing.drafts import write_noisy_draft

# Sliding windows, learned positions, post-norms, soft caps, a logit scale, merged experts.
FAMILIES = ("gemma3", "gpt2", "olmo2", "gemma2", "cohere", "qwen2_moe")
LENGTH = 40
TOLERANCE = 1e-4


@dataclass
class Pair:
    """A checkpoint in transformers and in this engine, with a cache whose slots are in disorder."""

    reference: PreTrainedModel
    model: TransformersForCausalLM
    tokens: torch.Tensor
    slots: torch.Tensor
    pool: TokenToKVPool

    def reference_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.reference(tokens[None]).logits[0]
        return logits

    def extend(self, start: int, end: int) -> torch.Tensor:
        """Logits of tokens `start .. end-1` behind a cache that holds those before."""
        span = AttentionSpan(0, end - start, start, self.slots[:end])
        return self.run(
            ForwardMode.EXTEND if start == 0 else ForwardMode.DRAFT_EXTEND,
            self.tokens[start:end],
            torch.arange(start, end),
            self.slots[start:end],
            span,
        )

    def run(
        self,
        mode: ForwardMode,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        span: AttentionSpan,
    ) -> torch.Tensor:
        batch = ForwardBatch(
            mode=mode,
            input_ids=tokens,
            positions=positions,
            out_cache_loc=out_cache_loc,
            spans=(span,),
            token_to_kv_pool=self.pool,
            attn_backend=create_attention_backend("torch_paged"),
        )
        with torch.inference_mode():
            return self.model.compute_logits(self.model(batch))


def build(model_config: ModelConfig) -> TransformersForCausalLM:
    with torch.device("meta"):
        return TransformersForCausalLM(model_config)


def load(
    path: Path, weights: Iterable[tuple[str, torch.Tensor]] | None = None
) -> TransformersForCausalLM:
    model = build(ModelConfig.from_server_args(ServerArgs(model_path=str(path), dtype="float32")))
    given = load_file(path / "model.safetensors").items() if weights is None else weights
    with torch.no_grad():
        load_weights(model, given)
    return model.eval()


def make_pair(path: Path, length: int = LENGTH) -> Pair:
    model = load(path)
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.model_config.vocab_size
    return Pair(
        reference=AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ),
        model=model,
        tokens=torch.randint(6, vocab_size, (length,), generator=generator),
        slots=torch.randperm(2 * length, generator=generator)[:length] + 1,
        pool=TokenToKVPool(2 * length + 1, model.kv_geometry, torch.float32, torch.device("cpu")),
    )


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    return make_pair(
        write_checkpoint(path, request.param, vocab_size=96, max_position_embeddings=64)
    )


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == torch.float32
    assert (found - expected).abs().max().item() < TOLERANCE


@pytest.mark.parametrize(
    "cuts",
    [(0, LENGTH), (0, 13, 14, 30, LENGTH), (0, 20, *range(21, LENGTH + 1))],
    ids=["whole", "chunked", "decode"],
)
def test_logits_equal_those_of_transformers(pair: Pair, cuts: Sequence[int]) -> None:
    pieces = [pair.extend(a, b) for a, b in pairwise(cuts)]
    assert_close(torch.cat(pieces), pair.reference_logits(pair.tokens))


def test_each_branch_of_a_tree_equals_its_own_sequence(pair: Pair) -> None:
    prefix_len = 20
    # Node 0 is the root; two branches of three, one of which forks again.
    parents = [-1, 0, 0, 1, 2, 3, 3, 4]
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    depths = torch.tensor([len(path) - 1 for path in paths])
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, path in enumerate(paths):
        mask[node, path] = True
    nodes = pair.tokens[prefix_len : prefix_len + len(parents)]

    pair.extend(0, prefix_len)
    end = prefix_len + len(parents)
    logits = pair.run(
        ForwardMode.TARGET_VERIFY,
        nodes,
        prefix_len + depths,
        pair.slots[prefix_len:end],
        AttentionSpan(
            0,
            len(parents),
            prefix_len,
            pair.slots[:end],
            mask=mask,
            window_positions=prefix_len + depths,
        ),
    )

    for node, path in enumerate(paths):
        sequence = torch.cat([pair.tokens[:prefix_len], nodes[path]])
        assert_close(logits[node], pair.reference_logits(sequence)[-1])


def test_target_and_draft_do_not_see_each_other(tmp_path: Path) -> None:
    target_path = write_checkpoint(tmp_path / "target", "olmo2", vocab_size=96)
    target = make_pair(target_path)
    draft = make_pair(write_noisy_draft(target_path, tmp_path / "draft", strength=0.5))
    pieces: list[torch.Tensor] = []
    for start in range(0, LENGTH, 10):
        pieces.append(target.extend(start, start + 10))
        draft.extend(start, start + 10)
    assert_close(torch.cat(pieces), target.reference_logits(target.tokens))


def test_the_config_of_the_model_config_stays_as_it_was(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "gemma3", "gemma3", vocab_size=96)
    model_config = ModelConfig.from_server_args(ServerArgs(model_path=str(path)))
    before = model_config.hf_config.to_json_string(), model_config.hf_config._attn_implementation
    build(model_config)
    after = model_config.hf_config.to_json_string(), model_config.hf_config._attn_implementation
    assert after == before


def test_old_names_and_stored_buffers_of_gpt2_load(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "gpt2", "gpt2", vocab_size=96, num_layers=2)
    expected = make_pair(path)
    weights = {
        name.removeprefix("transformer."): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    for layer in range(2):
        weights[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 256, 256).tril()
        weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    expected.model = load(path, weights.items())
    assert_close(expected.extend(0, LENGTH), expected.reference_logits(expected.tokens))


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_and_untied_heads(tmp_path: Path, is_tied: bool) -> None:
    path = write_checkpoint(
        tmp_path / "olmo2", "olmo2", vocab_size=96, tie_word_embeddings=is_tied, num_layers=1
    )
    pair = make_pair(path)
    assert_close(pair.extend(0, LENGTH), pair.reference_logits(pair.tokens))


def test_missing_tensors_have_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "olmo2", "olmo2", vocab_size=96, num_layers=1)
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.0.self_attn.o_proj.weight"]
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.o_proj\.weight"):
        load(path, weights.items())


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "moe", "qwen2_moe", vocab_size=96, num_layers=1)
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.0.mlp.experts.2.up_proj.weight"]
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        load(path, weights.items())


def save(path: Path, model_type: str, **values: object) -> Path:
    """A random checkpoint of an architecture that the package's own writer does not know."""
    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "pad_token_id": None,
    }
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**{**shape, **values}))
    randomize(model, seed=0)
    model.save_pretrained(path)
    return path


def test_keys_and_values_of_different_width(tmp_path: Path) -> None:
    path = save(
        tmp_path / "mla",
        "minicpm3",
        max_position_embeddings=64,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
    )
    pair = make_pair(path)
    assert pair.model.kv_geometry[0].head_dim == 24
    assert_close(pair.extend(0, LENGTH), pair.reference_logits(pair.tokens))


def test_long_rope_does_not_change_with_the_batch(tmp_path: Path) -> None:
    path = save(
        tmp_path / "phi3",
        "phi3",
        max_position_embeddings=64,
        original_max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0, 3.0, 4.0, 5.0],
            "original_max_position_embeddings": 32,
        },
    )
    pair = make_pair(path)
    # In one forward of 40 tokens transformers takes the long factors for all positions.
    expected = pair.reference_logits(pair.tokens)
    assert_close(torch.cat([pair.extend(0, 16), pair.extend(16, LENGTH)]), expected)


@pytest.mark.parametrize(
    ("model_type", "architecture", "reason"),
    [
        ("mamba", "MambaForCausalLM", "_supports_attention_backend"),
        ("bloom", "BloomForCausalLM", "_supports_attention_backend"),
        ("t5", "T5ForConditionalGeneration", "encoder-decoder"),
        ("bert", "BertForMaskedLM", "not a causal language model"),
        ("gemma3", "Gemma3ForConditionalGeneration", "multimodal"),
        ("vit", "ViTModel", "no causal language model"),
        ("zaya", "ZayaForCausalLM", "hybrid"),
        ("llama4_text", "Llama4ForCausalLM", "chunked_attention"),
    ],
)
def test_architectures_are_refused_by_their_config(
    model_type: str, architecture: str, reason: str
) -> None:
    hf_config = CONFIG_MAPPING[model_type](architectures=[architecture])
    with pytest.raises(ValueError, match=reason) as refused:
        check_supported(hf_config)
    assert architecture in str(refused.value)


@pytest.mark.parametrize(
    ("model_type", "architecture", "reason"),
    [
        ("gpt_oss", "GptOssForCausalLM", "sinks"),
        ("bert", "BertLMHeadModel", "not causal"),
        ("doge", "DogeForCausalLM", "mask or bias"),
        ("diffllama", "DiffLlamaForCausalLM", "more than once"),
    ],
)
def test_architectures_are_refused_by_what_their_code_does(
    model_type: str, architecture: str, reason: str
) -> None:
    hf_config = CONFIG_MAPPING[model_type](
        architectures=[architecture],
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model_config = ModelConfig.from_hf_config(
        hf_config, ServerArgs(model_path="refused"), Path("refused")
    )
    with pytest.raises(ValueError, match=reason) as refused:
        build(model_config)
    assert architecture in str(refused.value)


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_an_engine_decodes_as_transformers_does(tmp_path: Path, family: str) -> None:
    """Target and noisy draft both run through transformers' code, with trees."""
    path = write_checkpoint(tmp_path / family, family, vocab_size=96, max_position_embeddings=64)
    draft = write_noisy_draft(path, tmp_path / "draft")
    pair = make_pair(path, length=12)
    tokens = pair.tokens.tolist()
    expected = list(tokens)
    while len(expected) < LENGTH:
        expected.append(int(pair.reference_logits(torch.tensor(expected))[-1].argmax()))
    server_args = ServerArgs(
        model_path=str(path),
        device="cpu",
        dtype="float32",
        skip_tokenizer_init=True,
        max_total_tokens=256,
        chunked_prefill_size=5,
        speculative_algorithm="STANDALONE",
        speculative_draft_model_path=str(draft),
        speculative_num_steps=3,
        speculative_eagle_topk=2,
        speculative_num_draft_tokens=6,
    )
    params = SamplingParams(max_new_tokens=LENGTH - len(tokens), ignore_eos=True)
    with open_engine(server_args) as engine:
        (result,) = engine.generate([tokens], params)
    assert [*tokens, *result.token_ids] == expected
    assert result.spec is not None
    assert result.spec.to_json()["accepted"] > 0
