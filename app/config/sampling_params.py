"""How the tokens of one request are chosen and where they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
)

from app.config.validation_messages import one_line, refuse_boolean


def _as_strings(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class SamplingParams(BaseModel):
    """Sampling and stop conditions. Greedy by default; a faulty value raises ValueError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(
        default=0.0, ge=0.0, allow_inf_nan=False, description="Below 1e-6: greedy."
    )
    top_k: int = Field(
        default=-1,
        ge=-1,
        lt=2**31,
        description="Sample from this many likeliest tokens; -1 or 0: all.",
    )
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="Sample from the likeliest tokens that reach this probability; 1: all.",
    )
    min_p: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Drop tokens less likely than this share of the likeliest; 0: none.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="Seed of this request; unset: the engine's generator gives one."
    )
    max_new_tokens: PositiveInt = Field(default=128, description="Most tokens generated.")
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_strings)
    ] = Field(default=(), description="Strings that end the text; they are not part of it.")
    stop_token_ids: tuple[NonNegativeInt, ...] = Field(
        default=(), description="Token ids that end the text, besides the model's own."
    )
    ignore_eos: bool = Field(
        default=False, description="Go on behind the model's end-of-sequence tokens."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_as_numbers(cls, value: object, info: Any) -> object:
        return refuse_boolean(value, cls.model_fields[info.field_name])

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ValueError(one_line(error, {}, type(self).model_fields)) from None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken. A temperature below 1e-6 leaves it all the mass
        anyway, and a smaller one underflows float32."""
        return self.temperature < 1e-6
