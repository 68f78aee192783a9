from __future__ import annotations

from pathlib import Path

from eyas.report.contents import read_contents
from eyas.report.tables import write_tables


def test_engine_beside_simulation(reported: Path, tmp_path: Path) -> None:
    write_tables(tmp_path / "out", read_contents(reported, {}))
    assert (tmp_path / "out/acceptance.tsv").read_text().splitlines() == [
        "dataset\tside\tdraft_position\tacceptance",
        "chat\tsimulated\t1\t0.5",
        "chat\tsimulated\t2\t0.25",
        "chat\tengine\t1\t0.45",
        "chat\tengine\t2\t0.25",
    ]
    assert (tmp_path / "out/speedup.tsv").read_text().splitlines() == [
        "dataset\tconcurrency\tspeedup",
        "chat\t2\t2.0",
        "all\t2\t2.0",
        "chat\t16\t0.5",
        "all\t16\t0.5",
    ]


def test_before_the_engine_stage_only_the_heads(tmp_path: Path) -> None:
    write_tables(tmp_path / "out", read_contents(tmp_path, {}))
    assert (tmp_path / "out/speedup.tsv").read_text() == "dataset\tconcurrency\tspeedup\n"
