"""What a caller gets back for a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.scheduling.request import Request
from app.speculative.metrics import SpecMetrics
from app.tokenizer import Prompt


@dataclass(frozen=True, slots=True)
class Timing:
    """`decode_tokens_per_s` = (completion tokens - 1) / (last - first token time); None for one."""

    ttft_ms: float | None = None
    decode_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """One finished prompt. `token_ids` holds the stop token, `text` does not; `from_draft` says for
    each token whether a draft proposed it; `error` is set instead when the prompt was refused."""

    prompt: Prompt
    text: str = ""
    token_ids: tuple[int, ...] = ()
    from_draft: tuple[bool, ...] = ()
    prompt_tokens: int = 0
    finish_reason: str | None = None
    algorithm: str | None = None
    spec: SpecMetrics | None = None
    timing: Timing = field(default_factory=Timing)
    error: str | None = None

    @property
    def completion_tokens(self) -> int:
        return len(self.token_ids)

    def to_json(self) -> dict[str, Any]:
        """The object that `generate --json` prints (design of the command line)."""
        if self.error is not None:
            return {
                "prompt": self.prompt,
                "error": {"type": "invalid_request", "message": self.error},
            }
        spec = None
        if self.spec is not None:
            spec = {"algorithm": self.algorithm, **self.spec.to_json()}
        return {
            "prompt": self.prompt,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "finish_reason": self.finish_reason,
            "spec": spec,
            "timing": {
                "ttft_ms": self.timing.ttft_ms,
                "decode_tokens_per_s": self.timing.decode_tokens_per_s,
            },
        }


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one step added to a streamed prompt; `result` comes with the last one."""

    text: str
    token_ids: tuple[int, ...]
    from_draft: tuple[bool, ...]
    finish_reason: str | None = None
    result: GenerateResult | None = None


def result_of(prompt: Prompt, request: Request, algorithm: str | None) -> GenerateResult:
    """The result of a request that has ended; `algorithm` is None without speculation."""
    assert request.finish_reason is not None, "only ended requests have results"
    return GenerateResult(
        prompt=prompt,
        text=request.stop.text,
        token_ids=tuple(request.output_ids),
        from_draft=tuple(request.from_draft),
        prompt_tokens=request.num_prompt_tokens,
        finish_reason=request.finish_reason.value,
        algorithm=algorithm,
        spec=request.metrics if algorithm is not None else None,
        timing=_timing(request),
    )


def _timing(request: Request) -> Timing:
    if request.first_token_at is None or request.last_token_at is None:
        return Timing()
    seconds = request.last_token_at - request.first_token_at
    num_decoded = request.num_output_tokens - 1
    return Timing(
        ttft_ms=(request.first_token_at - request.submitted_at) * 1000,
        decode_tokens_per_s=num_decoded / seconds if seconds > 0 and num_decoded > 0 else None,
    )
