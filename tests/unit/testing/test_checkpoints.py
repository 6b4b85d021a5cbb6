"""Tiny checkpoints: reproducible, with text that varies and a tokenizer that fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.testing.checkpoints import FAMILIES, main, write_checkpoint
from app.testing.drafts import (
    pad_vocabulary,
    write_noisy_draft,
    write_perfect_draft,
    write_unrelated_draft,
)
from app.testing.tokenizers import BOS_ID, EOS_ID


def greedy_text(path: Path, prompt: list[int], num_tokens: int = 40) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=EOS_ID,
    )
    text: list[int] = output[0, len(prompt) :].tolist()
    return text


def agreement(target: Path, draft: Path) -> float:
    """How often the draft's best token is the target's, on the target's own text."""
    prompt = [BOS_ID, 5, 50, 60, 70]
    text = [*prompt, *greedy_text(target, prompt)]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(draft)(torch.tensor([text])).logits[0]
    best = logits[len(prompt) - 1 : -1].argmax(-1)
    return float((best == torch.tensor(text[len(prompt) :])).float().mean())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target") / "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_varies_and_the_tokenizer_fits(tmp_path: Path, family: str) -> None:
    path = write_checkpoint(tmp_path / family, family)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert len(tokenizer) == 320
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    texts = [greedy_text(path, [BOS_ID, token]) for token in (7, 50, 99)]
    assert len({token for text in texts for token in text}) > 5


def test_the_same_arguments_give_the_same_weights(tmp_path: Path) -> None:
    first, second, other = (
        load_file(write_checkpoint(tmp_path / name, seed=seed) / "model.safetensors")
        for name, seed in (("first", 0), ("second", 0), ("other", 1))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_any_text_survives_a_byte_level_tokenizer(target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    text = "héllo  wörld\n\t1234 漢字 🙂"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_small_vocabulary_knows_characters(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_checkpoint(tmp_path / "small", vocab_size=64))
    assert len(tokenizer) == 64
    assert tokenizer.decode(tokenizer("the cat")["input_ids"]) == "the cat"
    assert max(tokenizer("Ω")["input_ids"]) < 64


def test_the_chat_template_marks_each_turn(target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|system|>Be brief.<|user|>Hi<|assistant|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[:2]) == ["<|bos|>", "<|system|>"]


def test_drafts_are_perfect_partly_right_and_wrong(target: Path, tmp_path: Path) -> None:
    perfect = agreement(target, write_perfect_draft(target, tmp_path / "perfect"))
    noisy = agreement(target, write_noisy_draft(target, tmp_path / "noisy"))
    unrelated = agreement(target, write_unrelated_draft(target, tmp_path / "unrelated"))
    assert perfect == 1.0
    assert 0.2 < noisy < 1.0
    assert unrelated < 0.2


def test_a_padded_vocabulary_changes_no_real_logit(target: Path, tmp_path: Path) -> None:
    padded = pad_vocabulary(target, tmp_path / "padded")
    ids = torch.tensor([[BOS_ID, 5, 50]])
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(target)(ids).logits
        logits = AutoModelForCausalLM.from_pretrained(padded)(ids).logits
    assert logits.shape[-1] == plain.shape[-1] + 128
    torch.testing.assert_close(logits[..., : plain.shape[-1]], plain)
    # The padding would win.
    assert int(logits[0, -1].argmax()) >= plain.shape[-1]
    assert len(AutoTokenizer.from_pretrained(padded)) == plain.shape[-1]


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"family: 'lama' is unknown; known are llama"):
        write_checkpoint(tmp_path / "x", "lama")


def test_named_checkpoints_are_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path)])
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/model.safetensors")}
    assert {path.parent.name for path in written} == {"tiny-llama", "tiny-llama-draft"}
    main([str(tmp_path)])
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert str(tmp_path) in capsys.readouterr().out
