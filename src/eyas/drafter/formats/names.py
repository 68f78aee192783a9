"""Tensor names. Trainers and engines name the same tensors differently; here they have the names of `Drafter`.

The plain checkpoints of vLLM and SGLang call the one layer `midlayer`, speculators, modelopt and newer trainers
`layers.0`; older exports of fc_norm call its parts `aux_norm_low`, `aux_norm_mid`, `aux_norm_high`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from eyas.drafter.formats.findings import Findings

if TYPE_CHECKING:
    from torch import Tensor

LAYER = "midlayer."
NUMBERED = "layers.0."
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
WRAPPERS = ("module.", "model.", "draft_model.", "eagle_module.")
"""What training wrappers put before a name."""
LEGACY = {
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
    "eagle_lm_head.": "lm_head.",
    "draft_id_to_target_id": "d2t",
}


def drafter_name(name: str) -> str:
    """The name among `Drafter`'s parameters of a tensor of any known format."""
    while wrapper := next((each for each in WRAPPERS if name.startswith(each)), None):
        name = name.removeprefix(wrapper)
    for old, new in (*LEGACY.items(), (NUMBERED, LAYER)):
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def numbered_name(name: str) -> str:
    """The same tensor's name in the speculators format."""
    return NUMBERED + name.removeprefix(LAYER) if name.startswith(LAYER) else name


def drafter_tensors(tensors: Mapping[str, Tensor], found: Findings) -> dict[str, Tensor]:
    """Tensors by their names in `Drafter`. Rope frequencies, which old files hold, are left out: the config has them."""
    named: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for name, tensor in tensors.items():
        ours = drafter_name(name)
        if ours.endswith("rotary_emb.inv_freq"):
            found.assume(f"tensor `{name}` is left out: rope frequencies are computed from the config")
        elif ours in origin:
            found.refuse(f"tensors `{origin[ours]}` and `{name}` are the same tensor under two names")
        else:
            named[ours], origin[ours] = tensor, name
    return named
