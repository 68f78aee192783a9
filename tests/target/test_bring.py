from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import pytest

from eyas.errors import InputError
from eyas.target.bring import bring_target, find_gguf
from eyas.target.params import TargetParams
from eyas.target.profile import build_profile
from tests.tiny_target import profile_of


def test_folder(llama: Path, tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "tiny-llama")
    (source / "pytorch_model.bin").write_bytes(b"pickled")
    (source / "notes.txt").write_text("mine")
    (source / "modeling_x.py").write_text("code")
    target = tmp_path / "out"
    target.mkdir()
    params = TargetParams(source="folder", name=str(source))
    origin = bring_target(params, target)
    assert (origin.source, origin.revision, origin.served_name) == ("folder:tiny-llama", None, "tiny-llama")
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in llama.iterdir())
    assert build_profile(target, origin, params) == profile_of(llama)


def test_code_comes_only_when_trusted(llama: Path, tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "in")
    (source / "modeling_x.py").write_text("code")
    target = tmp_path / "out"
    target.mkdir()
    bring_target(TargetParams(source="folder", name=str(source), trust_remote_code=True), target)
    assert (target / "modeling_x.py").exists()


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_folder(llama: Path, tmp_path: Path, missing: str) -> None:
    source = shutil.copytree(llama, tmp_path / "in")
    (source / missing).unlink()
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(InputError, match="the target has no"):
        bring_target(TargetParams(source="folder", name=str(source)), target)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        bring_target(TargetParams(source="folder", name=str(tmp_path / "nothing")), tmp_path)


def test_hub_records_the_commit(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag moves; what is downloaded and recorded is the commit it stood for."""

    class Info:
        sha = "c0ffee"

    def download(name: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert (name, revision) == ("org/tiny", "c0ffee")
        assert "*.bin" not in allow_patterns
        shutil.copytree(llama, local_dir, dirs_exist_ok=True)
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, revision: Info())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    origin = bring_target(TargetParams(source="hub", name="org/tiny", revision="v1"), tmp_path)
    assert (origin.source, origin.revision, origin.served_name) == ("hub:org/tiny", "c0ffee", "tiny")
    assert not (tmp_path / ".cache").exists()


def test_hub_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, name: str, revision: str) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(InputError, match="no route to host"):
        bring_target(TargetParams(source="hub", name="org/tiny", revision="v1"), tmp_path)


def test_find_gguf_errors() -> None:
    with pytest.raises(InputError, match="is not installed"):
        find_gguf("no-such-package-of-anyone", "1", "x.gguf")
    with pytest.raises(InputError, match=r"is installed as .*, not 0\.0\.1"):
        find_gguf("polars", "0.0.1", "x.gguf")
    with pytest.raises(InputError, match=r"has no file x\.gguf"):
        find_gguf("polars", None, "x.gguf")
