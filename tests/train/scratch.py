"""A working directory in which stages/train.py runs: a tiny target, stores, vocabulary and params."""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save_file

from eyas.compute import ComputeParams
from eyas.train.params import TrainParams
from eyas.train.state import read_state

from .example import make_inputs

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "stages" / "train.py"
RESULTS = (
    "models/drafter",
    "reports/train/plots",
    "reports/train/validations.tsv",
    "reports/train/summary.json",
)


@dataclass(frozen=True)
class Scratch:
    """The directory."""

    path: Path

    @classmethod
    def create(cls, path: Path, folder: Path, params: TrainParams, **sizes: int) -> Scratch:
        """Write what the stage reads."""
        inputs = make_inputs(folder, path / "data" / "hidden", **sizes)
        (path / "models" / "vocab").mkdir(parents=True)
        shutil.copytree(folder, path / "models" / "target")
        inputs.profile.write(path / "models" / "profile.json")
        vocab = {"d2t": inputs.vocab.d2t, "t2d": inputs.vocab.t2d}
        save_file(vocab, path / "models" / "vocab" / "vocab.safetensors")
        scratch = cls(path)
        scratch.write_params(params, ComputeParams(accelerator="cpu", devices=1, checkpoint_every_s=0.0))
        return scratch

    def copy(self, path: Path) -> Scratch:
        """The same inputs elsewhere, nothing trained."""
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns(".journal", "drafter", "reports"))
        return Scratch(path)

    def write_params(self, params: TrainParams, compute: ComputeParams) -> None:
        sections = {"train": asdict(params), "compute": asdict(compute)}
        (self.path / "params.yaml").write_text(yaml.safe_dump(sections))

    def start(self, *launcher: str, **environment: str) -> subprocess.Popen[str]:
        """Start the stage, as `dvc repro` does."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "PYTEST_"))}
        return subprocess.Popen(
            [sys.executable, *launcher, str(SCRIPT)],
            cwd=self.path,
            env={**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *launcher: str, code: int = 0) -> str:
        """Run the stage to its end; returns what it printed."""
        process = self.start(*launcher)
        output = finish(process)
        assert process.returncode == code, output
        return output

    def run_here(self) -> None:
        """Run the stage in this process, which has imported everything."""
        with contextlib.chdir(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # third parties warn about their own settings
            runpy.run_path(str(SCRIPT), run_name="stage")["main"]()

    def saved_step(self) -> int:
        """Steps done by the saved state; 0 if there is none. A half-written file never has this name."""
        for path in self.path.glob("data/.journal/train/*/state.safetensors"):
            saved = read_state(path)
            return saved.record.step if saved is not None else 0
        return 0

    def results(self) -> dict[str, bytes]:
        """All files that the stage has published, but for those that depend on timing."""
        return {str(path.relative_to(self.path)): path.read_bytes() for path in self._files()}

    def read(self, name: str) -> Any:
        return yaml.safe_load((self.path / name).read_text())  # JSON is YAML

    def _files(self) -> Iterator[Path]:
        for name in RESULTS:
            path = self.path / name
            yield from [path] if path.is_file() else sorted(path.rglob("*.*"))


def finish(process: subprocess.Popen[str], timeout_s: float = 60.0) -> str:
    """Wait for a stage; returns what it printed. One that hangs is killed with all that it has started."""
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"hung: {process.communicate()[0]}"
