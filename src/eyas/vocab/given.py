"""The draft vocabulary of a drafter that is to be trained on.

Its head has a row per draft token, so another map would give every row another meaning (sgl-project/SpecForge#534).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from eyas import paths
from eyas.drafter.formats.draftmap import draft_ids
from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.layerids import layers_to_set, read_layer_ids, without_last_layer
from eyas.drafter.formats.names import drafter_name
from eyas.drafter.formats.weightfiles import read_json, weight_files
from eyas.errors import ConfigError, InputError
from eyas.target.spec import TargetProfile
from eyas.vocab.draft_vocab import DraftVocab

MAPS = ("d2t", "t2d")
HEAD, FC = "lm_head.weight", "fc.weight"
HINT = "vocab.map_from must name an EAGLE-3 drafter of this target; see docs/export.md"


@dataclass(frozen=True)
class Header:
    """What is needed of a drafter's weights."""

    maps: dict[str, NDArray[Any]]
    shapes: dict[str, list[int]]
    """Of head and fc."""

    def length(self, target_vocab_size: int) -> int:
        """Of the draft vocabulary."""
        if HEAD in self.shapes:
            return self.shapes[HEAD][0]
        if "d2t" in self.maps:
            return len(self.maps["d2t"])
        return int(self.maps["t2d"].sum()) if "t2d" in self.maps else target_vocab_size


def given_vocab(directory: Path, size: int, profile: TargetProfile) -> DraftVocab:
    """The vocabulary by the maps d2t and t2d of a drafter's safetensors; all tokens of the target if there are none.

    Its aux layers are compared too: here it costs nothing, behind the extraction it would have cost all of that.

    Raises:
        ConfigError: `vocab.draft_vocab_size` is another size, `target.aux_layer_ids` names other layers, or the folder is
            the output of a later stage.
        InputError: the folder can't be read, or its maps are wrong.
    """
    if directory.resolve().is_relative_to(paths.DRAFTER.resolve()):
        raise ConfigError(
            f"vocab.map_from: {directory} is the output of a later stage, made with this one's",
            hint="copy the drafter to another folder and name the copy",
        )
    header, found = _read(directory), Findings(directory)
    _check_layers(directory, header, profile, found)
    own = header.length(profile.vocab_size)
    if own != size:
        raise ConfigError(
            f"`vocab.draft_vocab_size`: {size}, but the drafter of `vocab.map_from` has {own} tokens",
            where=str(directory),
            hint=f"set vocab.draft_vocab_size to {own}",
        )
    ids = draft_ids(header.maps.get("d2t"), header.maps.get("t2d"), size, profile.vocab_size, found)
    found.check(HINT)
    return DraftVocab(ids, profile.vocab_size)


def _check_layers(directory: Path, header: Header, profile: TargetProfile, found: Findings) -> None:
    config = read_json(directory / "config.json")
    ids = config["aux_layer_ids"] if "aux_layer_ids" in config else read_layer_ids(config, profile, found)
    width = header.shapes[FC][-1] if FC in header.shapes else None
    ids = without_last_layer(ids, width, profile, found)
    found.check(HINT)
    if ids != profile.aux_layer_ids:
        raise ConfigError(
            f"`target.aux_layer_ids` is {profile.aux_layer_ids}, the drafter of `vocab.map_from` reads layers {ids}",
            where=str(directory),
            hint=layers_to_set(ids, profile.aux_layer_ids),
        )


def _read(directory: Path) -> Header:
    header = Header({}, {})
    for path in weight_files(directory):
        if path.suffix != ".safetensors":
            raise InputError(
                "the draft vocabulary can be read from safetensors only",
                where=str(path),
                hint="convert the drafter: eyas convert FOLDER NEW_FOLDER",
            )
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    ours = drafter_name(name)
                    if ours in MAPS:
                        header.maps[ours] = file.get_tensor(name)
                    elif ours in (HEAD, FC):
                        header.shapes[ours] = file.get_slice(name).get_shape()
        except (OSError, SafetensorError) as error:
            raise InputError(f"can't read these weights: {error}", where=str(path)) from error
    return header
