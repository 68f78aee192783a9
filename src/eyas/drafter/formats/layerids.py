"""Which layers a foreign config means by its aux layer ids.

A top-level list counts as vLLM does (Hugging Face `hidden_states` index). A list inside `eagle_config` is read as
outputs of layers by SGLang (id i: index i + 1) and as indices by one of vLLM's two runners, and is ignored by the
other; trainers write either. So a nested list alone has two readings, and the layers that were captured decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.drafter.formats.findings import Findings, is_size
from eyas.target.layers import canonical_layers, from_output_ids
from eyas.target.spec import TargetProfile

KEY = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"


def nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """The nested config, empty if there is none."""
    inner = config.get(NESTED)
    return inner if isinstance(inner, dict) else {}


def read_layer_ids(config: Mapping[str, Any], profile: TargetProfile, found: Findings) -> list[int]:
    """Hugging Face `hidden_states` indices of the aux layers, of a plain or speculators config."""
    top, inner = _list(config, KEY, KEY, found), _list(nested(config), KEY, f"{NESTED}.{KEY}", found)
    if top is not None:
        _check_nested(top, inner, found)
        return top
    if inner is None:
        return _default(profile, found)
    return _nested_only(inner, profile, found)


def layers_to_set(ids: list[int], captured: list[int]) -> str:
    """What to do about a drafter that reads other layers than were captured, as a hint."""
    hint = f"set target.aux_layer_ids to {ids} and run again"
    if from_output_ids(ids) != captured:
        return hint
    return (
        f"{hint}; or, if its list counts outputs of layers, which some converters copy as they are, they are the layers "
        f"{captured}: write these into its config.json"
    )


def without_last_layer(
    ids: list[int], width: int | None, profile: TargetProfile, found: Findings
) -> list[int]:
    """Drop a last id that only names the state of the target's own prediction (vllm-project/speculators#1065).

    `width`: numbers that `fc` reads per token, if known.
    """
    fused = (len(ids) - 1) * profile.hidden_size
    if len(ids) < 2 or ids[-1] != profile.num_layers or width != fused:
        return ids
    found.assume(
        f"layer id {ids[-1]} is left out: it is the target's last state, and `fc` reads {len(ids) - 1} layers"
    )
    return ids[:-1]


def _nested_only(inner: list[int], profile: TargetProfile, found: Findings) -> list[int]:
    captured, shifted = profile.aux_layer_ids, from_output_ids(inner)
    if shifted == captured:
        found.assume(
            f"`{NESTED}.{KEY}` {inner} counts outputs of layers, as SGLang does: these are the layers {captured} of "
            "target.aux_layer_ids; counted as vLLM does they would be other layers"
        )
        return shifted
    if inner == captured:
        found.assume(
            f"`{NESTED}.{KEY}` {inner} counts as target.aux_layer_ids does, whose layers these are; if outputs of layers "
            f"are meant, as SGLang reads them, set target.aux_layer_ids to {shifted}"
        )
        return inner
    found.refuse(
        f"config: `{NESTED}.{KEY}` {inner} can mean two sets of layers, and neither was captured: "
        f"set target.aux_layer_ids to {shifted} if it counts outputs of layers (SGLang, most trainers), to {inner} if "
        "it counts as vLLM does"
    )
    return captured


def _default(profile: TargetProfile, found: Findings) -> list[int]:
    try:
        ids = canonical_layers(profile.num_layers)
    except ValueError:
        found.refuse(f"config: no `{KEY}`, and a target of {profile.num_layers} layers has no default ones")
        return profile.aux_layer_ids
    found.assume(f"the aux layers are {ids}, the engines' default: the config names none")
    return ids


def _check_nested(top: Sequence[int], inner: list[int] | None, found: Findings) -> None:
    if inner is None or from_output_ids(inner) == top:
        return
    if inner == top:
        found.assume(
            f"`{KEY}` {list(top)} counts as vLLM does; the same list in `{NESTED}` makes SGLang take the layers after these"
        )
        return
    found.refuse(
        f"config: `{KEY}` {list(top)} and `{NESTED}.{KEY}` {inner} are different layers in every counting"
    )


def _list(config: Mapping[str, Any], key: str, shown: str, found: Findings) -> list[int] | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(is_size(each) or each == 0 for each in value):
        found.refuse(f"config: `{shown}` must be a list of layer ids, is {value!r}")
        return None
    if value != sorted(set(value)):
        found.refuse(f"config: `{shown}` {value} is not ascending without repetition, as engines sort it")
    return list(value)
