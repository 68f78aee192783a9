"""Runs of the generate stage (tests.nursery)."""

from __future__ import annotations

import os
from typing import Any

from eyas import paths
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from eyas.process import run_stage
from tests.generate.example import generate_params, profile
from tests.nursery import serve
from tests.serving.example import server_params


def live(order: dict[str, Any]) -> None:
    """What stages/generate.py does, without its guard: the code under test may be edited while 100 lives pass."""
    os.environ["OPENAI_BASE_URL"] = order["base_url"]
    params = generate_params(**order.get("generate", {}))
    server = server_params(**order.get("server", {}))
    target = profile()

    def main() -> None:
        table = PromptTable.read(paths.prompts("a"), "a")
        with open_journal("a", target, params) as journal:
            with Session("a", target, params, server) as session:
                responses = session.answer(table, journal)
            responses.publish(paths.responses("a"))

    run_stage(main)


if __name__ == "__main__":
    serve(live)
