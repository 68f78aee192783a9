from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from eyas.errors import ArtifactError
from eyas.report.contents import read_contents
from eyas.report.page import flattened, render_page

from .conftest import write_reports

VOID = {"meta", "img"}


class Page(HTMLParser):
    """What a reader finds: texts of cells and headings, and the sources of everything that is loaded."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.facts: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(html)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside in ("td", "th"):
            self.rows[-1][-1] += data
        elif inside == "b":
            self.facts.append(data)
        elif inside == "h3":
            self.headings.append(data)
        if inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    reported = write_reports(tmp_path_factory.mktemp("reported"))
    return Page(
        render_page(read_contents(reported, {"train": {"lr": 0.5, "init_from": None}, "seeds": [1, 2]}))
    )


def test_it_needs_nothing_else(page: Page) -> None:
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)


def test_every_chart_is_an_svg_that_shows_its_data(page: Page) -> None:
    for source in page.sources:
        root = ET.fromstring(base64.b64decode(source.partition(",")[2]))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 5


def test_the_numbers_at_the_top(page: Page) -> None:
    assert page.facts == [
        "1.70",  # chat: the engine's
        "–",  # code: no draft anywhere
        "2.00×",  # concurrency 2 before 16
        "0.50×",
        "8 of 9",
        "50.0%",
        "87.50%",  # (300 * 1.0 + 100 * 0.5) / 400
    ]


def test_simulation_and_engine_side_by_side(page: Page) -> None:
    assert ["token 1", "50.00%", "45.00%", "-10.00%"] in page.rows
    assert ["token 2", "25.00%", "25.00%", "–"] in page.rows
    assert ["acceptance length", "1.750", "1.700", "-2.86%"] in page.rows
    assert ["token 1", "–", "–", "–"] in page.rows  # code: not measured in the engine


def test_speed_by_concurrency_and_by_drafted_tokens(page: Page) -> None:
    assert ["", "2 at a time", "16 at a time"] in page.rows
    assert ["all prompts", "2.00", "0.50"] in page.rows
    assert ["10", "1.800", "1.80"] in page.rows
    assert "The best number of drafted tokens: 10 at concurrency 2." in page.text


def test_what_is_missing_is_named(page: Page) -> None:
    assert "Not there yet: reports/acceptance/by_context.csv." in page.text
    assert "By context length" not in page.headings
    assert "By kind of token" in page.headings


def test_params_are_listed_by_their_names(page: Page) -> None:
    assert ["train.lr", "0.5"] in page.rows
    assert ["train.init_from", "null"] in page.rows
    assert ["seeds", "1, 2"] in page.rows


def test_names_are_texts_not_markup(reported: Path) -> None:
    html = render_page(read_contents(reported, {}))
    assert "<b>Tiny" not in html
    assert "Tiny &lt;b&gt;" in html


def test_the_same_reports_give_the_same_bytes(reported: Path) -> None:
    contents = read_contents(reported, {})
    assert render_page(contents) == render_page(contents)


def test_before_the_first_stage_the_page_is_empty_but_whole(tmp_path: Path) -> None:
    page = Page(render_page(read_contents(tmp_path, {})))
    assert page.facts == page.headings == page.sources == []
    assert "models/profile.json" in page.text


def test_before_the_engine_stage_the_simulation_stands_alone(reported: Path) -> None:
    (reported / "reports/engine.json").unlink()
    (reported / "reports/speed.json").unlink()
    page = Page(render_page(read_contents(reported, {})))
    assert page.facts[0] == "1.75"
    assert ["token 1", "50.00%", "–", "–"] in page.rows


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_report_is_named(reported: Path, text: str) -> None:
    (reported / "reports/engine.json").write_text(text)
    with pytest.raises(ArtifactError, match="report") as caught:
        read_contents(reported, {})
    assert "engine.json" in str(caught.value)


def test_flattened_keeps_empty_sections() -> None:
    assert list(flattened({"a": {"b": {}, "c": True}, "d": ""})) == [
        ("a.b", "{}"),
        ("a.c", "true"),
        ("d", ""),
    ]
