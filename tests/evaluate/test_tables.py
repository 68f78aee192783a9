from __future__ import annotations

from eyas.evaluate.tables import plot_tables

from .examples import make_simulation


def test_tables_are_in_long_form() -> None:
    tables = plot_tables(make_simulation())
    assert tables["by_dataset"].rows() == [
        ("all", 1, 0.6, None, None, 0.6),
        ("all", 2, 0.2, None, None, 0.333333),
        ("a", 1, 0.666667, None, None, 0.666667),
        ("a", 2, 0.333333, None, None, 0.5),
        ("b", 1, 0.5, None, None, 0.5),
        ("b", 2, 0.0, None, None, 0.0),
    ]
    assert tables["by_position"].rows() == [
        ("all", 0, 2.0, 3.0),
        ("all", 2, 1.5, 2.0),
        ("a", 0, 3.0, 1.0),
        ("a", 2, 1.5, 2.0),
        ("b", 0, 1.5, 2.0),
    ]
    assert tables["by_context"].rows() == [
        ("all", 0, 3.0, 1.0),
        ("all", 12, 1.5, 4.0),
        ("a", 0, 3.0, 1.0),
        ("a", 12, 1.5, 2.0),
        ("b", 12, 1.5, 2.0),
    ]
    assert tables["by_kind"].rows() == [
        ("all", "reasoning", 2.0, 2.0, 1.0, 2.0),
        ("all", "answer", 1.66667, 3.0, 0.4, 5.0),
        ("a", "reasoning", 2.0, 2.0, 1.0, 2.0),
        ("a", "answer", 2.0, 1.0, 0.333333, 3.0),
        ("b", "answer", 1.5, 2.0, 0.5, 2.0),
    ]
    assert tables["by_draft_tokens"].rows()[:2] == [
        ("all", 1, 1.66667, None, None, None),
        ("all", 2, 1.8, None, None, None),
    ]


def test_speedups_stand_beside_the_lengths() -> None:
    table = plot_tables(make_simulation(cost_per_draft_token=0.2))["by_draft_tokens"]
    assert table["speedup"].to_list()[:2] == [1.38889, 1.28571]
