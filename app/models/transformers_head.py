"""The language model head as its own architecture computes it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from app.models.transformers_support import refusal


class _GivenHiddenStates(nn.Module):
    """Stands where the base model stood and returns the hidden states it is given."""

    def forward(
        self, *args: object, inputs_embeds: torch.Tensor, **kwargs: object
    ) -> _BaseModelOutput:
        return _BaseModelOutput(inputs_embeds)

    @property
    def decoder(self) -> _GivenHiddenStates:
        # Some heads (OPT) call the base model's only child instead of the base model.
        return self


class _BaseModelOutput:
    """What heads read of a base model's output: the hidden states; everything else is None."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: object) -> Any:
        return self.last_hidden_state if index in (0, "last_hidden_state") else None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class TransformersHead:
    """Runs `causal_lm`'s own forward on hidden states, in place of its base model.

    Soft caps, logit scales and whatever else an architecture does around its `lm_head` are its own
    code. The parameters stay those of `causal_lm`. Not a Module, so that they are registered once.
    """

    def __init__(self, causal_lm: PreTrainedModel, base_model_name: str) -> None:
        self._forward = copy.copy(causal_lm)
        self._forward.__dict__["_modules"] = {
            **causal_lm._modules,
            base_model_name: _GivenHiddenStates(),
        }

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[R, hidden_size]` -> `[R, vocab_size]` float32."""
        output = self._forward(inputs_embeds=hidden[None], use_cache=False)
        logits: torch.Tensor = output.logits
        return logits[0].float()

    def check(self, hidden_size: int, vocab_size: int, architecture: str) -> None:
        """Try it on the meta device. Raises ValueError when hidden states are not all it needs."""
        hidden = torch.zeros((1, hidden_size), dtype=self._forward.dtype, device="meta")
        try:
            shape = tuple(self(hidden).shape)
        # Whatever an architecture's code raises when it misses something of its base model.
        except Exception as error:
            problem = " ".join(str(error).split())[:200]
            raise refusal(
                architecture,
                f"its head needs more than hidden states ({type(error).__name__}: {problem})",
            ) from error
        if shape != (1, vocab_size):
            raise refusal(
                architecture, f"its head gives logits of shape {shape}, not (1, {vocab_size})"
            )
