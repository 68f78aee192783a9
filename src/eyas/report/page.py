"""The page of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from eyas.report.acceptance import acceptance_panels
from eyas.report.contents import Contents
from eyas.report.data import data_panels
from eyas.report.headline import headline
from eyas.report.panel import Section, Table
from eyas.report.speed import speed_panels
from eyas.report.training import training_panels

TEMPLATE = "page.html.j2"


def render_page(contents: Contents) -> str:
    """The HTML text; sections of stages that have not run are left out, and the page says so."""
    sections = [
        Section("Acceptance: simulated and in the engine", acceptance_panels(contents)),
        Section("Speed", speed_panels(contents)),
        Section("Training", training_panels(contents)),
        Section("Data", data_panels(contents)),
    ]
    environment = Environment(
        loader=PackageLoader("eyas.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(TEMPLATE).render(
        profile=contents.reports.get("profile"),
        facts=headline(contents),
        sections=[section for section in sections if section.panels],
        params=Table(["parameter", "value"], [list(pair) for pair in flattened(contents.params)]),
        missing=contents.missing,
    )


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested params as dotted names and texts."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(_text(item) for item in value) if isinstance(value, list) else str(value)
