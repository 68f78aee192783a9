"""`eyas peek`: single rows of a dataset's answers as they are on disk, while a run goes on or after."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from eyas.cli.journals import think_format
from eyas.cli.record_view import record_view
from eyas.cli.records import (
    Condition,
    Record,
    Selection,
    Source,
    choose_source,
    newest_first,
    prompt_messages,
)
from eyas.cli.schema_scan import scan, schema_table
from eyas.cli.visible import escaped
from eyas.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", nargs="?", help="whose rows to show")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="so many rows, the newest first (1)")
    parser.add_argument(
        "--where",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="only rows that hold this: finish_reason=length, usage.completion_tokens=16, flags=lossy_text",
    )
    parser.add_argument("--sample", metavar="ID", help="all rows of this sample id")
    parser.add_argument("--errors", action="store_true", help="rows without an answer, and why")
    parser.add_argument("--schema", action="store_true", help="keys and types over all rows")
    parser.add_argument(
        "--chars", type=int, default=160, metavar="N", help="first and last characters shown (160)"
    )
    parser.add_argument("--sequence", metavar="ID", help="a reassembled sequence, token by token, by its id")
    parser.add_argument("--ids", action="store_true", help="with --sequence: the id behind every token")


def run(arguments: argparse.Namespace) -> int:
    """Print rows; returns the exit code: 1 if none fits.

    Raises:
        InputError: there is nothing to read, or an argument makes no sense.
    """
    console = Console()
    if arguments.sequence is not None:
        from eyas.cli.sequence import show

        return show(arguments.sequence, console, ids=arguments.ids)
    if arguments.dataset is None and arguments.where and "=" not in arguments.where[-1]:
        arguments.dataset = arguments.where.pop()  # peek --where finish_reason=length DATASET
    if arguments.dataset is None:
        raise InputError("peek needs a dataset, or --sequence ID", hint="eyas status lists the datasets")
    if arguments.n < 1 or arguments.chars < 1:
        raise InputError("-n and --chars need a number above 0")
    source = choose_source(arguments.dataset, errors=arguments.errors)
    console.print(Text(f"{source.path}  ({source.why})", style="dim"), soft_wrap=True)
    if arguments.schema:
        return _show_schema(source, arguments.errors, console)
    return _show_rows(source, arguments, console)


def _show_rows(source: Source, arguments: argparse.Namespace, console: Console) -> int:
    conditions = [Condition.parse(text) for text in arguments.where]
    selection = Selection(arguments.sample, conditions, arguments.errors)
    records = _take(source, selection, arguments)
    if not records and arguments.sample is not None and source.journal is None and not arguments.errors:
        failed = choose_source(arguments.dataset, errors=True)  # published rows and errors are two files
        records = _take(failed, selection, arguments) if failed.path.exists() else []
    think = think_format()
    for record in records:
        prompt = (
            []
            if "messages" in record.values
            else prompt_messages(arguments.dataset, record.values.get("sample_id"))
        )
        console.print(record_view(record, think, arguments.chars, prompt))
    if records:
        return 0
    console.print(_nothing(selection))
    return 1


def _take(source: Source, selection: Selection, arguments: argparse.Namespace) -> list[Record]:
    if arguments.sample is not None:
        return selection.take(newest_first(source, containing=arguments.sample), 1 << 30)[::-1]
    return selection.take(newest_first(source), arguments.n)


def _show_schema(source: Source, errors: bool, console: Console) -> int:
    with console.status("reading all rows"):
        schema = scan(
            record
            for record in newest_first(source)
            if record.damage is not None or record.is_error == errors
        )
    console.print(f"{schema.rows:,} {'rows without an answer' if errors else 'answers'}, all of them read")
    console.print(schema_table(schema))
    for record in schema.damaged[:5]:
        console.print(Text(f"damaged line at byte {record.offset}: {record.damage}", style="bold red"))
    return 0 if schema.rows else 1


def _nothing(selection: Selection) -> Text:
    what = "rows without an answer" if selection.errors else "answers"
    if selection.sample_id is not None:
        return Text(f"no row has the sample id {escaped(selection.sample_id)}")
    if not selection.looked_at:
        return Text(f"there are no {what}")
    text = f"none of {selection.looked_at:,} {what} fits"
    if selection.conditions:
        text += f"; {selection.conditions[0].key} is: {_values(selection.values.most_common(8))}"
    return Text(text)


def _values(values: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{escaped(value[:40])} ({count:,} times)" for value, count in values) or "nowhere"
