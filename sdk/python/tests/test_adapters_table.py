"""The table of docs/adapters.md is the one of the kept results, and none of them is worse than its bar."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def table() -> Any:
    spec = importlib.util.spec_from_file_location("adapters_table", Path(__file__).parent / "adapters" / "table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_kept_is_within_the_bars_and_is_what_the_page_shows() -> None:
    assert table().problems() == []


def test_every_kept_row_has_every_cell() -> None:
    columns = table().COLUMNS.keys()
    assert [row["framework"] for row in table().kept() if not columns <= row.keys()] == []


def test_a_cell_that_is_worse_is_told() -> None:
    row = {"framework": "Loose", "language": "python", "version": "loose 1", "loop": {"tools": 3, "models": 4}, "cap": {"tools": 3, "models": 4}}
    row |= {"at_once": {"usd": 1.25}, "users": {"healthy": 2, "of": 3}, "restart": None}
    told = table().worse([row])
    assert [sentence.partition(": ")[2] for sentence in told] == [
        "loop is 3/4, worse than the bar",
        "64 at once is $1.25, worse than the bar",
        "healthy users is 2/3, worse than the bar",
    ]
