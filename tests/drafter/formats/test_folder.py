from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eyas.drafter.formats.folder import read_folder
from eyas.errors import InputError


def put(directory: Path, *names: str) -> None:
    (directory / "config.json").write_text("{}")
    for number, name in enumerate(names):
        save_file({f"tensor_{number}": torch.zeros(2)}, directory / name)


def index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_safetensors_come_before_bin(tmp_path: Path) -> None:
    put(tmp_path, "any-name.safetensors")
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    assert list(read_folder(tmp_path).tensors) == ["tensor_0"]


def test_a_bin_file_may_wrap_its_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"state_dict": {"norm.weight": torch.ones(3)}}, tmp_path / "pytorch_model.bin")
    assert read_folder(tmp_path).tensors["norm.weight"].tolist() == [1, 1, 1]


class Shouts:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code of a checkpoint ran",))


def test_code_in_a_bin_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"norm.weight": torch.ones(3), "extra": Shouts()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="can't read these weights") as caught:
        read_folder(tmp_path)
    assert "convert it to safetensors" in str(caught.value.hint)
    assert "code of a checkpoint ran" not in capsys.readouterr().out


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        read_folder(tmp_path / "missing")


def test_files_that_are_missing_or_torn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no config.json"):
        read_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="not a JSON object"):
        read_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_folder(tmp_path)
    put(tmp_path)
    with pytest.raises(InputError, match="no weights here"):
        read_folder(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InputError, match="can't read these weights"):
        read_folder(tmp_path)


def test_several_files_need_an_index(tmp_path: Path) -> None:
    put(tmp_path, "a.safetensors", "b.safetensors")
    with pytest.raises(InputError, match=r"no index: a.safetensors, b.safetensors"):
        read_folder(tmp_path)
    index(tmp_path, {"tensor_0": "a.safetensors", "tensor_1": "b.safetensors"})
    assert sorted(read_folder(tmp_path).tensors) == ["tensor_0", "tensor_1"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"tensor_0": "a.safetensors", "tensor_9": "b.safetensors"}, "`tensor_9` of the index is in none"),
        ({"tensor_0": "a.safetensors", "tensor_1": "c.safetensors"}, "names a file 'c.safetensors'"),
        ({"tensor_0": "../a.safetensors"}, "names a file '../a.safetensors'"),
        (["a.safetensors"], "no `weight_map`"),
    ],
)
def test_an_index_that_is_wrong(tmp_path: Path, weight_map: object, message: str) -> None:
    put(tmp_path, "a.safetensors", "b.safetensors")
    index(tmp_path, weight_map)
    with pytest.raises(InputError) as caught:
        read_folder(tmp_path)
    assert message in str(caught.value)
