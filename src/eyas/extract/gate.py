"""Integrity checks of extracted states. Wrong states train a drafter that looks fine and is rejected by the engine.

Letters in shape comments: T tokens, H hidden size, A aux layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.errors import GateError
from eyas.extract.backend import TransformersBackend
from eyas.target.model import TargetHead, TargetStates

FIXTURE_SEQUENCES = 3
FIXTURE_TOKENS = 128
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest relative difference of a state vector between two ways of computing it."""
SHOWN = 5


@torch.inference_mode()
def check_fixture(backend: TransformersBackend, head: TargetHead, sequences: Sequence[Sequence[int]]) -> None:
    """Compare a few captured sequences with the model's own `output_hidden_states`, one sequence at a time.

    Each vector is compared relative to its own length: a few positions have values thousands of times larger than
    all others and would hide any error. The captured states come from a padded batch, the reference from none.

    Raises:
        GateError: a layer is another one, or the final norm is missing or doubled.
    """
    cut = [list(tokens[:FIXTURE_TOKENS]) for tokens in sequences[:FIXTURE_SEQUENCES]]
    if not cut:
        return
    for tokens, states in zip(cut, backend.states(cut), strict=True):
        reference = backend.model(
            input_ids=torch.tensor([tokens], device=backend.device),
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states
        for column, layer in enumerate(backend.aux_layer_ids):
            _compare(f"the aux state of layer {layer}", states.aux[:, column], reference[layer][0])
        _compare("the final norm of the last state", head.normed(states.last), reference[-1][0])


def _compare(name: str, ours: Tensor, theirs: Tensor) -> None:
    ours, theirs = ours.float(), theirs.float()
    difference = ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)).max().item()
    if not difference <= TOLERANCE[theirs.dtype if theirs.dtype in TOLERANCE else torch.float32]:
        raise GateError(
            f"{name} differs from the model's own hidden_states by {difference:.3g} of its length",
            where="self-check at the start of extraction",
            hint="this target's layers can't be captured rightly; report its architecture",
        )


def check_states(sequence_id: str, tokens: Sequence[int], states: TargetStates) -> None:
    """States must be finite, one row per token, and different at different tokens.

    Raises:
        GateError: names the sequence and the layer.
    """
    for rows in (len(states.aux), len(states.last)):
        if rows != len(tokens):
            raise GateError(f"{rows} rows of states for {len(tokens)} tokens", where=sequence_id)
    columns = [*states.aux.unbind(dim=1), states.last]  # A + 1 times [T, H]
    for column, values in enumerate(columns):
        name = f"aux state {column}" if column < len(columns) - 1 else "last state"
        if not bool(torch.isfinite(values).all()):
            raise GateError(
                f"the {name} is not finite",
                where=sequence_id,
                hint="float16 overflows in many models: set target.dtype to bfloat16 or float32",
            )
        if not bool(values.any()) or (len(set(tokens)) > 1 and bool((values == values[:1]).all())):
            raise GateError(f"the {name} is zero or the same at every token", where=sequence_id)


@dataclass(frozen=True)
class Disagreement:
    """A generated token that the target's argmax does not give."""

    sequence_id: str
    position: int
    token: int
    argmax: int
    margin: float
    """Logit of the argmax minus that of the token."""


@dataclass
class Agreement:
    """Counts generated tokens that equal the target's argmax, per dataset of a split."""

    expected: dict[str, int]
    """Generated tokens of each dataset, known before the run."""
    min_agreement: float
    checked: dict[str, int] = field(default_factory=dict)
    agreed: dict[str, int] = field(default_factory=dict)
    worst: dict[str, list[Disagreement]] = field(default_factory=dict)

    def add(self, dataset: str, checked: int, disagreements: Sequence[Disagreement]) -> None:
        """Count a sequence."""
        self.checked[dataset] = self.checked.get(dataset, 0) + checked
        self.agreed[dataset] = self.agreed.get(dataset, 0) + checked - len(disagreements)
        worst = [*self.worst.get(dataset, []), *disagreements]
        self.worst[dataset] = sorted(worst, key=lambda found: (-found.margin, found.sequence_id))[:SHOWN]

    def check(self) -> None:
        """Stop as soon as the rest of a dataset can't bring its share up to the minimum.

        Raises:
            GateError: shows the tokens that lie furthest from the argmax.
        """
        for dataset, checked in self.checked.items():
            disagreed = checked - self.agreed[dataset]
            if self.expected[dataset] - disagreed < self.min_agreement * self.expected[dataset]:
                shown = "; ".join(
                    f"{found.sequence_id} position {found.position}: token {found.token}, "
                    f"argmax {found.argmax}, margin {found.margin:.4g}"
                    for found in self.worst[dataset]
                )
                raise GateError(
                    f"{disagreed} of {checked} generated tokens of {dataset} are not what the target predicts, "
                    f"more than extract.min_agreement {self.min_agreement} allows. Worst: {shown}",
                    where=f"dataset {dataset}",
                    hint="the answers come from another model, dtype or sampling than target.* says, or the states "
                    "are wrong. For sampled answers or 16-bit targets lower extract.min_agreement. If the server was the "
                    f"wrong one, remove its answers before running again: data/.journal/generate/{dataset}",
                )
