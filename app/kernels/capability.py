"""What this machine's CPU can do, as a value that tests and callers hand on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCapability:
    """Instruction sets that kernels are chosen by, and whether torch was built with oneDNN."""

    has_onednn: bool = False
    has_avx2: bool = False
    has_avx512: bool = False
    has_avx512_bf16: bool = False
    has_avx512_vnni: bool = False
    has_amx_bf16: bool = False

    @property
    def has_native_bf16(self) -> bool:
        """Whether bfloat16 products run in hardware rather than through float32."""
        return self.has_avx512_bf16 or self.has_amx_bf16


def detect_cpu_capability() -> CpuCapability:
    """The capability of the machine that this process runs on."""
    # torch names its own dispatch level only; the finer sets are the operating system's to tell.
    flags = _cpu_flags()
    level = torch.backends.cpu.get_cpu_capability()
    return CpuCapability(
        has_onednn=torch._C._has_mkldnn,
        has_avx2=level in ("AVX2", "AVX512"),
        has_avx512=level == "AVX512",
        has_avx512_bf16=level == "AVX512" and "avx512_bf16" in flags,
        has_avx512_vnni=level == "AVX512" and "avx512_vnni" in flags,
        has_amx_bf16=level == "AVX512" and "amx_bf16" in flags,
    )


def _cpu_flags() -> frozenset[str]:
    if not _CPUINFO.is_file():
        return frozenset()
    for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()
