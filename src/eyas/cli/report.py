"""`eyas report`: the page of the run from whatever has been reported so far, also before the last stage is done."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from eyas import paths
from eyas.errors import InputError
from eyas.files import write_bytes

DEFAULT = Path("report.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=DEFAULT, help=f"the page to write; default: {DEFAULT}"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page; returns the exit code.

    Raises:
        InputError: there is no report at all here, or the page can't be written.
    """
    from eyas.report.contents import read_contents  # matplotlib takes a second to import
    from eyas.report.page import render_page

    contents = read_contents(Path(), _params())
    if not contents.reports:
        raise InputError(
            "there is no report here",
            where=str(Path.cwd()),
            hint="run it in the repository's root, after `dvc repro` or `dvc pull`",
        )
    try:
        write_bytes(arguments.output, render_page(contents).encode())
    except OSError as error:
        raise InputError(
            f"can't write the page: {error.strerror}",
            where=str(arguments.output),
            hint="choose another --output",
        ) from error
    print(f"wrote {arguments.output}")
    if contents.missing:
        print(f"not there yet: {', '.join(contents.missing)}")
    return 0


def _params() -> dict[str, object]:
    if not paths.PARAMS.exists():
        return {}
    return dict(yaml.safe_load(paths.PARAMS.read_text()) or {})
