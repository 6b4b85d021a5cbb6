"""How the weights of one model are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.config.frozen_mapping import thaw_mapping
from app.config.provenance import user_field
from app.config.server_args import ServerArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """What a loader needs to know besides the model; one for each model, never shared."""

    load_format: str
    download_dir: str | None
    extra_config: Mapping[str, object]
    revision: str | None
    # What the user calls the setting that names the checkpoint, for errors.
    path_field: str = "model_path"


def build_load_config(server_args: ServerArgs) -> LoadConfig:
    """The load config of the record's own model.

    "auto" is decided here and not in records, because a draft inherits the word and not what it
    meant for the target's path: a `.gguf` file is read as gguf, anything else stays "auto".
    """
    load_format = server_args.load_format
    if load_format == "auto" and server_args.model_path.lower().endswith(".gguf"):
        load_format = "gguf"
    return LoadConfig(
        load_format=load_format,
        download_dir=server_args.download_dir,
        extra_config=thaw_mapping(server_args.model_loader_extra_config),
        revision=server_args.revision,
        path_field=user_field(server_args.sources, "model_path"),
    )
