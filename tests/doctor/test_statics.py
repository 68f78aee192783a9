"""What is read off a folder without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyas.doctor.layers import LayerStates
from eyas.doctor.material import Material
from eyas.doctor.statics import Finding, findings
from eyas.referee.folder import Folder, read_as
from eyas.referee.tensorfile import StoredTensor
from tests.pipeline.sabotage import Config, Tensors, without, write_spoiled
from tests.referee.hand_made import (
    IDS,
    HandMade,
    hand_made,
    make_drafter,
    plain_config,
    plain_tensors,
    write_folder,
)


@pytest.fixture(scope="module")
def made() -> HandMade:
    return hand_made()


class Look:
    """Spoils a folder and reads what is found."""

    def __init__(self, made: HandMade, directory: Path) -> None:
        self.made, self.directory = made, directory
        drafter = make_drafter(norm_before_fc=True)
        self.sound = write_folder(
            directory / "sound", plain_config(drafter), plain_tensors(drafter, made.vocab)
        )

    def material(self, spoil: Any = lambda config, tensors: None, **more: Any) -> Material:
        folder = Folder.read(write_spoiled(self.directory / "spoiled", self.sound, spoil))
        return Material(
            folder=folder,
            target=self.made.target,
            as_is=read_as(folder, self.made.target),
            steps=3,
            store_ids=IDS,
            held_out=[],
            learned=[],
            layers=LayerStates(self.directory, "float32"),
            **more,
        )

    def __call__(self, spoil: Any = lambda config, tensors: None, **more: Any) -> list[Finding]:
        return findings(self.material(spoil, **more), "vllm")


@pytest.fixture
def look(made: HandMade, tmp_path: Path) -> Look:
    return Look(made, tmp_path)


def config(**changes: Any) -> Any:
    def spoil(values: Config, tensors: Tensors) -> None:
        values.update(changes)
        for key in [key for key, value in changes.items() if value is None]:
            del values[key]

    return spoil


def test_nothing_is_found_in_a_sound_folder(look: Look) -> None:
    assert look() == []


@pytest.mark.parametrize(
    ("spoil", "severity", "cause", "text"),
    [
        (without("norm.weight"), "fault", "final_norm", "the engine takes ones"),
        (without("midlayer.mlp.up_proj.weight"), "fault", "tensor_missing", "memory as it was"),
        (without("d2t"), "fault", "d2t_ignored", "draft ids as target ids"),
        (config(norm_before_fc=False), "fault", "norm_before_fc", "norm_before_fc is off"),
        (config(rope_parameters={"rope_type": "default", "rope_theta": 7.0}), "doubt", "rope_theta", "theta 7"),
        (config(eagle_aux_hidden_state_layer_ids=[1, 3, 4]), "doubt", None, "layers [1, 3, 4]"),
        (config(eagle_aux_hidden_state_layer_ids=[2, 5, 11]), "fault", "aux_layers_other", "within 0..8"),
        (config(eagle_aux_hidden_state_layer_ids=[5, 4, 2]), "doubt", "aux_order", "vLLM sorts it"),
        (config(eagle_aux_hidden_state_layer_ids=None), "note", "aux_layers_default", "absent"),
        (config(max_position_embeddings=128), "note", None, "the target's 512"),
        (config(norm_before_residual=None), "note", "norm_before_residual", "not written"),
    ],
)  # fmt: skip
def test_what_is_odd_is_found(look: Look, spoil: Any, severity: str, cause: str | None, text: str) -> None:
    found = look(spoil)
    assert [(each.severity, each.cause) for each in found if text in each.text] == [(severity, cause)], found


def test_nested_ids_alone_are_a_doubt(look: Look) -> None:
    def spoil(values: Config, tensors: Tensors) -> None:
        ids = values.pop("eagle_aux_hidden_state_layer_ids")
        values["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}

    found = look(spoil)
    assert [(each.severity, each.cause) for each in found] == [("doubt", "aux_layers_default")]
    assert "V2 ignores them" in found[0].text


def test_target_ids_in_place_of_offsets(look: Look) -> None:
    def spoil(values: Config, tensors: Tensors) -> None:
        tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))

    first = look(spoil)[0]
    assert (first.severity, first.cause) == ("fault", "d2t_absolute")
    assert first.change is not None
    assert first.change.should.startswith("offsets")


def test_another_map_than_t2ds(look: Look) -> None:
    def spoil(values: Config, tensors: Tensors) -> None:
        tensors["t2d"] = tensors["t2d"].roll(1)

    assert [(each.severity, each.cause) for each in look(spoil)] == [("doubt", "d2t_other")]


def test_values_that_can_not_be(look: Look) -> None:
    def spoil(values: Config, tensors: Tensors) -> None:
        tensors["fc.weight"][0, 0] = float("nan")
        tensors["lm_head.weight"].zero_()

    texts = [each.text for each in look(spoil) if each.severity == "fault"]
    assert texts == [
        "fc.weight holds values that are not finite",
        "lm_head.weight is all zeros: it was never loaded or trained",
    ]


def test_a_head_of_the_target_and_what_training_says_of_it(look: Look, made: HandMade) -> None:
    def spoil(values: Config, tensors: Tensors) -> None:
        rows = torch.from_numpy(np.asarray(made.target.head))
        tensors["lm_head.weight"] = rows[made.vocab.draft_ids].clone()

    assert [(each.severity, each.cause) for each in look(spoil)] == [("doubt", "head_of_target")]
    trained = {"lm_head.weight": StoredTensor("lm_head.weight", "F32", np.ones((24, 16), np.float32))}
    assert ("fault", "head_of_target") in [
        (each.severity, each.cause) for each in look(spoil, trained=trained)
    ]


def test_the_tensors_of_training_rounded_are_the_same(look: Look) -> None:
    def spoil(values: Config, tensors: Tensors) -> None:
        for name in [name for name in tensors if name not in ("d2t", "t2d")]:
            tensors[name] = tensors[name].bfloat16()

    trained = Folder.read(look.sound).tensors
    assert [each.severity for each in look(spoil, trained=trained)] == ["note"]


def test_an_embedding_of_its_own(look: Look, made: HandMade) -> None:
    def stale(values: Config, tensors: Tensors) -> None:
        tensors["embed_tokens.weight"] = torch.zeros(60, 16) + 1

    def same(values: Config, tensors: Tensors) -> None:
        tensors["embed_tokens.weight"] = torch.from_numpy(made.embedding)

    assert [(each.severity, each.cause) for each in look(stale)] == [("doubt", "embedding")]
    assert look(same) == []
