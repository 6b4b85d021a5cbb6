"""The attention backends by name."""

from __future__ import annotations

from types import MappingProxyType

from app.attention.base import BaseAttentionBackend
from app.attention.torch_dense import TorchDenseBackend
from app.attention.torch_paged import TorchPagedBackend

_BACKENDS: MappingProxyType[str, type[TorchPagedBackend | TorchDenseBackend]] = MappingProxyType(
    {backend.name: backend for backend in (TorchPagedBackend, TorchDenseBackend)}
)


def create_attention_backend(name: str) -> BaseAttentionBackend:
    """A new backend; one for each model, since it keeps what it planned for the last batch."""
    return _backend_class(name)()


def reads_cached_prefix(name: str) -> bool:
    """Whether prefill can continue behind cached tokens with this backend."""
    return _backend_class(name).supports_cached_prefix


def _backend_class(name: str) -> type[TorchPagedBackend | TorchDenseBackend]:
    try:
        return _BACKENDS[name]
    except KeyError:
        raise ValueError(
            f"attention_backend {name!r} is not one of {', '.join(sorted(_BACKENDS))}"
        ) from None
