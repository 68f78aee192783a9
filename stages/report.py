"""Puts the run on one page, the engine beside the simulation for `dvc plots`, and the numbers into the model cards."""

from pathlib import Path

from eyas import paths
from eyas.config import read_sections
from eyas.drafter.formats.card import completed
from eyas.files import write_bytes
from eyas.hashing import Guard
from eyas.process import run_stage
from eyas.report.contents import read_contents
from eyas.report.page import render_page
from eyas.report.tables import write_tables


def main() -> None:
    guard = Guard.start("target", "datasets", "generate", "vocab", "extract", "train", "speculation")
    params = read_sections("target", "datasets", "generate", "vocab", "extract", "train", "speculation")
    contents = read_contents(Path(), params)
    page = render_page(contents)
    guard.check()
    write_tables(paths.OVERVIEW, contents)
    write_bytes(paths.PAGE, page.encode())
    for card in sorted(paths.EXPORT.glob("*/README.md")):
        text = completed(card.read_text(), contents.reports.get("acceptance"), contents.reports.get("engine"))
        write_bytes(paths.CARDS / f"{card.parent.name}.md", text.encode())


if __name__ == "__main__":
    run_stage(main)
