from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eyas.errors import ArtifactError
from eyas.referee.tensorfile import read_tensors

TENSORS = {
    "half": torch.tensor([[1.5, -2.25], [3.0, 1e-3], [7.0, 300.0]], dtype=torch.bfloat16),
    "short": torch.tensor([0.1, 65504.0], dtype=torch.float16),
    "whole": torch.tensor([[1, -2]], dtype=torch.int64),
    "flags": torch.tensor([True, False, True]),
    "wide": torch.tensor([1 / 3], dtype=torch.float64),
}


def test_every_type_has_the_values_of_torch(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    read = read_tensors(tmp_path)
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        expected = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        np.testing.assert_array_equal(read[name].array(), expected)
        assert read[name].shape == tuple(tensor.shape)
    np.testing.assert_array_equal(read["half"][[2, 0]], TENSORS["half"].float().numpy()[[2, 0]])
    assert read["flags"].array().dtype == bool


def test_an_index_joins_its_files(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert {name: tensor.shape for name, tensor in read_tensors(tmp_path).items()} == {"a": (2,), "b": (3,)}
    index["weight_map"]["c"] = "two.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match="names c"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 40, -8])
def test_a_cut_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactError, match="can't be read"):
        read_tensors(tmp_path)


def test_a_type_that_is_not_known_is_named(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, dtype=torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match="x is of type F8_E4M3"):
        read_tensors(tmp_path)
