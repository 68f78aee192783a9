from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.errors import ArtifactError
from eyas.evaluate.exported import load_exported_weights
from tests.drafter.conftest import make_drafter


def test_the_exported_weights_replace_the_trained_ones(tmp_path: Path) -> None:
    trained, exported = make_drafter(0).float(), make_drafter(1)
    tensors = {name: weight.bfloat16() for name, weight in exported.state_dict().items()}
    save_file({**tensors, "d2t": torch.zeros(3, dtype=torch.int64)}, tmp_path / "model.safetensors")
    load_exported_weights(trained, tmp_path)
    for name, weight in trained.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, tensors[name].float())


def test_another_drafters_export_is_refused(tmp_path: Path) -> None:
    plain = make_drafter()
    save_file(dict(make_drafter(norm_before_fc=True).state_dict()), tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match="can't be simulated"):
        load_exported_weights(plain, tmp_path)
    with pytest.raises(ArtifactError, match="can't be simulated"):
        load_exported_weights(plain, tmp_path / "missing")
