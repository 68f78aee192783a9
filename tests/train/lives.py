"""Runs of stages/train.py (tests.nursery)."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import eyas.train.fit  # noqa: F401 - imported once, for all lives
from tests.nursery import serve
from tests.train.scratch import SCRIPT


def live(order: dict[str, Any]) -> None:
    sys.argv = [str(SCRIPT)]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    serve(live)
