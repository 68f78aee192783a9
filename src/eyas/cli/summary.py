"""The closing table of a run, from the reports that the stages left: `python -m eyas.cli.summary`.

What a report does not hold, or a missing report, shows as "-".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eyas import paths
from eyas.datasets import load_datasets
from eyas.errors import ConfigError
from eyas.reports import counted_alike

MISSING = "-"


def main() -> None:
    """Print the tables of the run in the working directory."""
    console = Console()
    console.print(dataset_table(paths.REPORTS))
    console.print(result_table(paths.REPORTS))


def dataset_table(reports: Path) -> Table:
    """One row per dataset: answers, quarantine, tokens, draft-vocabulary coverage, acceptance lengths."""
    table = Table(title="Datasets")
    table.add_column("dataset")
    for column in ("answers", "quarantined", "tokens", "in vocab", "simulated", "engine"):
        table.add_column(column, justify="right")
    vocab, acceptance = _read(reports / "vocab.json"), _read(reports / "acceptance.json")
    engine = _read(reports / "engine.json")
    for name in _datasets(reports):
        validation = _read(reports / "validation" / f"{name}.json")
        table.add_row(
            name,
            _count(_get(validation, "validated")),
            _count(_get(validation, "quarantined")),
            _count(_get(validation, "tokens", "generated", "total")),
            _share(_coverage(vocab, name)),
            _length(_get(acceptance, "datasets", name, "acceptance", "length")),
            _length(_measured(_get(engine, "datasets", name))),
        )
    return table


def result_table(reports: Path) -> Table:
    """What came out: sequences, coverage, acceptance, identical answers, speed."""
    reassembly, vocab = _read(reports / "reassembly.json"), _read(reports / "vocab.json")
    acceptance, engine = _read(reports / "acceptance.json"), _read(reports / "engine.json")
    answers = _get(engine, "answers", "with_drafter_as_without")
    table = Table(title="Drafter", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for split in paths.SPLITS:
        rows, tokens = (_get(reassembly, "splits", split, key) for key in ("rows", "generated_tokens"))
        table.add_row(f"{split} sequences / generated tokens", f"{_count(rows)} / {_count(tokens)}")
    table.add_row("held-out tokens in the draft vocabulary", _share(_get(vocab, "coverage", "eval")))
    table.add_row("draft tokens per target step", _count(_get(acceptance, "draft_tokens")))
    table.add_row(
        "acceptance length, simulated", _length(_get(acceptance, "overall", "acceptance", "length"))
    )
    table.add_row("acceptance length, engine", _length(_measured(_get(engine, "overall"))))
    table.add_row("engine against simulation", _signed(_get(engine, "overall", "difference", "length")))
    identical, total = _get(answers, "identical"), _get(answers, "answers")
    table.add_row("identical answers with the drafter", f"{_count(identical)} of {_count(total)}")
    for concurrency, speed in sorted(_speeds(reports), key=lambda item: int(item[0])):
        table.add_row(f"tokens/s without and with it, {concurrency} in flight", _speed(speed))
    return table


def _datasets(reports: Path) -> list[str]:
    """Datasets of params.yaml in its order; a removed dataset leaves its report behind. Without params: all reports."""
    try:
        return list(load_datasets())
    except ConfigError:
        return sorted(path.stem for path in (reports / "validation").glob("*.json"))


def _speeds(reports: Path) -> list[tuple[str, Mapping[str, Any]]]:
    by_concurrency = _get(_read(reports / "speed.json"), "by_concurrency") or {}
    return list(by_concurrency.items())


def _speed(speed: Mapping[str, Any]) -> str:
    without = _get(speed, "without_drafter", "tokens_per_s")
    with_drafter = _get(speed, "with_drafter", "tokens_per_s")
    ratio = _get(speed, "speedup")
    tokens_per_s = [MISSING if value is None else f"{value:.1f}" for value in (without, with_drafter)]
    return f"{' / '.join(tokens_per_s)}  ({MISSING if ratio is None else f'{ratio:.2f}x'})"


def _coverage(vocab: Mapping[str, Any], dataset: str) -> Any:
    """Of the dataset's held-out or training split, whichever it is in."""
    found = (_get(vocab, "coverage_by_dataset", split, dataset) for split in ("eval", "train"))
    return next((value for value in found if value is not None), None)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        report: Mapping[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return report


def _get(report: Any, *keys: str) -> Any:
    for key in keys:
        report = report.get(key) if isinstance(report, Mapping) else None
    return report


def _measured(entry: Mapping[str, Any] | None) -> Any:
    return None if entry is None else _get(counted_alike(entry), "acceptance", "length")


def _count(value: Any) -> str:
    return MISSING if value is None else f"{value:,}"


def _length(value: Any) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _share(value: Any) -> str:
    return MISSING if value is None else f"{value:.1%}"


def _signed(value: Any) -> str:
    return MISSING if value is None else f"{value:+.2%}"


if __name__ == "__main__":
    main()
