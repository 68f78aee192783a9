"""The command `eyas`: looking at runs and rows. `eyas --help` lists what it can do."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from eyas.cli import convert, doctor, peek, report, status
from eyas.errors import EyasError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 nothing there or an error, 2 wrong arguments."""
    parsed = _parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except EyasError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `eyas peek ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eyas", description="Look at the runs of this repository.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module, text in (
        ("status", status, "how far generation is, while it runs or after"),
        ("peek", peek, "single rows of answers, readable: every invisible character shown"),
        ("convert", convert, "a drafter from one checkpoint format to another"),
        ("doctor", doctor, "why a drafter is accepted less than it was trained to be"),
        ("report", report, "the page of the run, one HTML file, from what has been reported so far"),
    ):
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
