"""`eyas peek --sequence ID`: one training sequence, token by token, in colours by kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import polars as pl
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from eyas import paths, tokenkinds
from eyas.cli.visible import escaped
from eyas.errors import ArtifactError
from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer

STYLES = ("dim", "bold magenta", "yellow", "green", "cyan", "bold red")
"""By kind."""
_FACTS = ("dataset", "origin", "truncated", "weight", "task")


@dataclass(frozen=True)
class Token:
    """One token as it is shown."""

    token_id: int
    text: str
    """What it adds to the text; empty if it is the start of a character that a later token ends."""
    kind: int


def show(sequence_id: str, console: Console, *, ids: bool = False) -> int:
    """Print a sequence of data/sequences; with `ids` the id behind every token. Returns 0, or 1 if there is none.

    Raises:
        ArtifactError: there are no sequences.
        InputError: the target's tokenizer can't be loaded.
    """
    row = _find(sequence_id)
    if row is None:
        console.print(Text(f"no sequence has the id {escaped(sequence_id)}"))
        console.print(Text("its answer may have been refused or dropped: see reports/reassembly.json", "dim"))
        return 1
    tokens = list(_tokens(row["token_ids"], row["kinds"]))
    console.print(Rule(Text(escaped(sequence_id), "bold"), align="left"))
    console.print(_facts(row))
    console.print(_legend())
    for kind, run in groupby(enumerate(tokens), key=lambda item: item[1].kind):
        places, shown = zip(*run, strict=True)
        title = f"{tokenkinds.NAMES[kind]}  tokens {places[0]} to {places[-1]} ({len(shown)})"
        console.print(Rule(Text(title, STYLES[kind]), align="left", characters="·", style="dim"))
        console.print(_text(shown, ids=ids), soft_wrap=False, overflow="fold")
    return 0


def _find(sequence_id: str) -> dict[str, Any] | None:
    """The row, with the split that it is in."""
    for split in paths.SPLITS:
        path = paths.sequences(split)
        if not path.exists():
            raise ArtifactError("there are no sequences", where=str(path), hint="dvc repro reassemble")
        found = pl.scan_parquet(path).filter(pl.col("sequence_id") == sequence_id).head(1).collect()
        if not found.is_empty():
            return found.row(0, named=True) | {"split": split}
    return None


def _tokens(token_ids: list[int], kinds: list[int]) -> Iterator[Token]:
    """Tokens with the text that each adds: a character of several tokens is shown at the last of them."""
    trust = TargetProfile.read(paths.TARGET_PROFILE).trust_remote_code
    tokenizer = load_tokenizer(paths.TARGET, trust_remote_code=trust)
    step = _stepper(tokenizer)
    for token_id, kind in zip(token_ids, kinds, strict=True):
        yield Token(token_id, step(token_id), kind)


def _stepper(tokenizer: Any) -> Any:
    """A function from the next id to the text it adds."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda token_id: tokenizer.decode([token_id])
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    return lambda token_id: stream.step(backend, token_id) or ""


def _facts(row: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    counts = ((name, row["kinds"].count(kind)) for kind, name in enumerate(tokenkinds.NAMES))
    grid.add_row("tokens", ", ".join(f"{count:,} {name}" for name, count in counts if count))
    grid.add_row("split", row["split"])
    for name in _FACTS:
        if row[name] is not None:
            grid.add_row(name, escaped(str(row[name])))
    return grid


def _legend() -> Text:
    legend = Text()
    for kind, name in enumerate(tokenkinds.NAMES):
        legend.append(f" {name} ", f"{STYLES[kind]} reverse")
        legend.append(" ")
    return legend


def _text(tokens: tuple[Token, ...], *, ids: bool) -> Text:
    """The tokens in the colour of their kind, every other one underlined; a line ends where the text has a newline."""
    text = Text()
    for place, token in enumerate(tokens):
        style = STYLES[token.kind] + (" underline" if place % 2 else "")
        text.append(escaped(token.text) if token.text else "·" if ids else "", style)
        if ids:
            text.append(f"⟨{token.token_id}⟩", "dim")
        if token.text.endswith("\n"):
            text.append("\n")
    text.rstrip()
    return text
