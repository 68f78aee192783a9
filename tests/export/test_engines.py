"""What the engines' own loading rules make of the exported folders."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyas.drafter.formats.serving import Serving
from eyas.export.writing import Trained, export_drafter
from eyas.referee.folder import read_folder
from eyas.referee.rope import Rope
from eyas.referee.target import TargetSide

from .conftest import HIDDEN, PROFILE, VOCAB, make_drafter, make_vocab


def target_side() -> TargetSide:
    rng = np.random.default_rng(3)
    embedding, head = (rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32) for _ in range(2))
    return TargetSide(
        num_layers=PROFILE.num_layers,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        max_position_embeddings=PROFILE.max_position_embeddings,
        rope=Rope(PROFILE.rope_theta),
        dtype="float32",
        embedding=embedding,
        head=head,
    )


@pytest.mark.parametrize(
    ("name", "engine"), [("vllm", "vllm"), ("speculators", "vllm"), ("sglang", "sglang"), ("sglang", "vllm")]
)
def test_every_engine_reads_what_was_trained(
    tmp_path: Path, name: str, engine: str, flags: dict[str, Any]
) -> None:
    if name == "sglang" and flags["norm_before_residual"]:
        return  # is refused
    drafter, vocab = make_drafter(**flags), make_vocab()
    export_drafter(tmp_path, name, Trained(drafter, vocab, imported=False), Serving(PROFILE, "float32", 3))
    reading = read_folder(tmp_path, target_side(), engine)
    assert reading.missing == []
    assert reading.layer_ids == PROFILE.aux_layer_ids
    assert reading.target_ids.tolist() == vocab.draft_ids.tolist()
    assert asdict(reading.flags) == {key: bool(value) for key, value in flags.items()}
    assert (reading.rope.theta, reading.rope.scaling) == (PROFILE.rope_theta, None)
    for key, value in drafter.state_dict().items():
        if key != "lm_head.weight":
            place = key.removesuffix(".weight").removeprefix("midlayer.")
            place = place.removeprefix("self_attn.").removeprefix("mlp.")
            np.testing.assert_array_equal(reading.weights[place], value.numpy())
    np.testing.assert_array_equal(
        reading.head[np.arange(vocab.size)], drafter.lm_head.weight.detach().numpy()
    )
