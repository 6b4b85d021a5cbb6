"""Which files of a checkpoint directory hold its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from app.config.json_file import read_json_object

SAFETENSORS = "*.safetensors"
BIN = "*.bin"
PT = "*.pt"

# load format -> file patterns; the first that matches anything is taken.
PATTERNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "auto": (SAFETENSORS, BIN, PT),
        "safetensors": (SAFETENSORS,),
        "pt": (PT,),
        "npcache": (BIN,),
    }
)

_INDEX_NAMES = MappingProxyType(
    {SAFETENSORS: "model.safetensors.index.json", BIN: "pytorch_model.bin.index.json"}
)
_SINGLE_NAMES = MappingProxyType({SAFETENSORS: "model.safetensors", BIN: "pytorch_model.bin"})
# What trainers leave beside the weights.
_TRAINING_FILES = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The weight files of one checkpoint.

    `file_of` (tensor name -> file) comes from the index file: a tensor that also lies in another
    file is not read twice. None when there is no index.
    """

    directory: Path
    pattern: str
    files: tuple[Path, ...]
    file_of: Mapping[str, Path] | None


def find_checkpoint_files(
    directory: Path, load_format: str, *, path_field: str = "model_path"
) -> CheckpointFiles:
    """The weight files that `load_format` reads in `directory`; ValueError if there are none.

    `path_field`: the setting that names the directory.
    """
    patterns = PATTERNS[load_format]
    if not directory.is_dir():
        raise ValueError(
            f"{path_field}: {directory} is not a directory; load format {load_format} reads "
            f"{' or '.join(patterns)} from a checkpoint directory"
        )
    for pattern in patterns:
        found = _match(directory, pattern)
        if found:
            return _select(directory, pattern, found)
    raise ValueError(
        f"{path_field}: {directory} holds no {' or '.join(patterns)}, "
        f"which load format {load_format} reads"
    )


def _match(directory: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(
        path
        for path in sorted(directory.glob(pattern))
        if not path.name.startswith(_TRAINING_FILES)
    )


def _select(directory: Path, pattern: str, found: tuple[Path, ...]) -> CheckpointFiles:
    index_name = _INDEX_NAMES.get(pattern)
    if index_name is not None and (directory / index_name).is_file():
        file_of = _read_index(directory / index_name)
        return CheckpointFiles(directory, pattern, tuple(sorted(set(file_of.values()))), file_of)
    single = directory / _SINGLE_NAMES.get(pattern, "")
    files = (single,) if single in found else found
    return CheckpointFiles(directory, pattern, files, None)


def _read_index(index: Path) -> Mapping[str, Path]:
    try:
        weight_map = read_json_object(index).get("weight_map")
    except ValueError as error:
        reason = str(error).removeprefix(f"{index}: ")
        raise ValueError(f"{index}: not a weight index: it {reason}") from error
    if not isinstance(weight_map, Mapping) or not all(
        isinstance(file, str) and file for file in weight_map.values()
    ):
        raise ValueError(f"{index}: not a weight index: weight_map must map tensors to files")
    file_of = {name: index.parent / file for name, file in weight_map.items()}
    absent = sorted({path.name for path in file_of.values() if not path.is_file()})
    if absent:
        raise ValueError(f"{index}: lists files that are absent: {', '.join(absent[:5])}")
    return file_of
