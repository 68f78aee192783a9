from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eyas.config import SECTIONS, load_keys, load_section, read_section, read_value
from eyas.datasets import load_datasets
from eyas.errors import ConfigError

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Inner:
    flag: bool = False
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outer:
    rate: float
    count: int
    note: str | None = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count: {self.count} is below 1")


def write(path: Path, text: str) -> Path:
    file = path / "params.yaml"
    file.write_text(text)
    return file


def test_values_and_nested_values_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {rate: 1e-4, count: 2, inner: {flag: true, names: [a, b]}}\n")
    section = load_section("train", Outer, path)
    assert section == Outer(rate=1e-4, count=2, inner=Inner(flag=True, names=["a", "b"]))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("train: {rate: 1, count: 2, rat: 3}", "train.rat", id="unknown key"),
        pytest.param(
            "train: {rate: 1, count: 2, inner: {flg: true}}", "train.inner.flg", id="unknown nested key"
        ),
        pytest.param("train: {rate: fast, count: 2}", "train.rate", id="wrong type"),
        pytest.param("train: {rate: 1, count: null}", "train.count", id="null where a value is needed"),
        pytest.param("train: {rate: 1}", "train.count", id="missing value"),
        pytest.param("train: {rate: 1, count: 0}", "`train.count`: 0 is below 1", id="impossible value"),
        pytest.param(
            "train: {rate: 1, count: 2, note: 'costs ${x}'}", "train.note", id="interpolation in text"
        ),
        pytest.param(
            "train: {rate: 1, count: 2, size: 3}", "`train.size`: no key may be", id="a key unseen by DVC"
        ),
        pytest.param(
            "train: {rate: 1, count: 2, inner: {nfiles: 3}}",
            "`train.inner.nfiles`: no key",
            id="unseen, deeper",
        ),
        pytest.param("train: 7", "`train` must be a mapping", id="no mapping"),
        pytest.param("export: {}", "section `train` is missing", id="missing section"),
        pytest.param(
            "train: {rate: 1, count: 2}\ntrian: {}", "unknown section `trian`", id="misspelt section"
        ),
        pytest.param("train: [", "not valid YAML", id="no YAML"),
    ],
)
def test_a_wrong_section_names_its_key_and_file(tmp_path: Path, text: str, key: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_section("train", Outer, path)
    assert key in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repository root"):
        read_section("train", tmp_path / "params.yaml")


@dataclass(frozen=True)
class Few:
    rate: float
    count: int = 1


def test_some_keys_of_a_section(tmp_path: Path) -> None:
    """The others may be anything: they are not this stage's."""
    path = write(tmp_path, "train: {rate: 1e-4, count: 2, other: [1], third: {a: 1}}\n")
    assert load_keys("train", ("rate", "count"), Few, path) == Few(1e-4, 2)
    assert load_keys("train", ("rate",), Few, path) == Few(1e-4, 1)


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        pytest.param("train: {count: 2}", ("rate", "count"), "train.rate", id="missing"),
        pytest.param("train: {rate: fast}", ("rate",), "train.rate", id="wrong type"),
        pytest.param(
            "train: {rate: 1, other: 2}", ("rate", "other"), "train.other", id="not in the dataclass"
        ),
        pytest.param("train: 7", ("rate",), "`train` must be a mapping", id="no mapping"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, text: str, keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_keys("train", keys, Few, write(tmp_path, text))
    assert message in str(caught.value)


def test_a_section_or_one_key_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {rate: 1, inner: {a: 2}}\nexport: 3\n")
    assert read_value("train", path) == {"rate": 1, "inner": {"a": 2}}
    assert read_value("train.inner", path) == {"a": 2}
    assert read_value("train.gone", path) is None
    assert read_value("export.key", path) is None
    with pytest.raises(ConfigError, match="section `vocab` is missing"):
        read_value("vocab.draft_vocab_size", path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: {source: web, role: train}}", "datasets.a"),
        ("{a: {source: jsonl, role: test, path: x}}", "`datasets.a.role`: 'test'"),
        ("{a: {source: jsonl, role: train}}", "needs `path`"),
        ("{a: {source: reasoning_gym, role: train, tasks: [gcd]}}", "needs `tasks` and `count`"),
        ("{a.b: {source: jsonl, role: train, path: x}}", "dataset name"),
        ("{a: {source: jsonl, role: eval, path: x}}", "no entry with role: train"),
        ("{a: {source: jsonl, role: train, path: x}}", "no entry with role: eval"),
        ("[a, b]", "must be a mapping"),
        ("{2024: {source: jsonl, role: train, path: x}}", "dataset name is text"),
    ],
)
def test_wrong_datasets_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_datasets(write(tmp_path, f"datasets: {text}\n"))


@pytest.mark.parametrize(
    "path", [ROOT / "params.yaml", *sorted((ROOT / "recipes").glob("*.yaml"))], ids=lambda p: p.stem
)
def test_every_section_fits_its_dataclass(path: Path) -> None:
    """The default params and the recipes, as the stages read them."""
    from eyas.compute import ComputeParams
    from eyas.engine.params import EngineParams
    from eyas.evaluate.params import EvaluateParams
    from eyas.export.params import ExportParams
    from eyas.extract.params import ExtractParams
    from eyas.generate.params import GenerateParams
    from eyas.prompts.params import PromptsParams
    from eyas.reassemble.params import ReassembleParams
    from eyas.serving.params import ServerParams
    from eyas.speculation import SpeculationParams
    from eyas.target.params import TargetParams
    from eyas.train.params import TrainParams
    from eyas.validate.params import ValidateParams
    from eyas.vocab.params import VocabParams

    schemas = (
        ComputeParams, EngineParams, EvaluateParams, ExportParams, ExtractParams, GenerateParams, PromptsParams, ReassembleParams,
        ServerParams, SpeculationParams, TargetParams, TrainParams, ValidateParams, VocabParams,
    )  # fmt: skip
    for schema in schemas:
        assert load_section(schema.__name__.removesuffix("Params").lower(), schema, path)
    roles = [dataset.role for dataset in load_datasets(path).values()]
    assert "eval" in roles, "nothing to measure on"
    assert {schema.__name__.removesuffix("Params").lower() for schema in schemas} | {"datasets"} == set(
        SECTIONS
    )
