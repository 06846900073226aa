"""The kept results of the bars (`sdk/adapters.json`), and the table of them in docs/adapters.md.

    python table.py                   writes the table
    python table.py --add rows.json   takes the rows of this file over into the kept ones first
    python table.py --check           changes nothing; fails when a cell is worse than its bar, or when the table is not of these results

Rows come from `bars.py` for Python and from the runner of the TypeScript adapters.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, Callable, Optional

ROOT = Path(__file__).resolve().parents[4]
KEPT = ROOT / "sdk" / "adapters.json"
PAGE = ROOT / "docs" / "adapters.md"
BARS = ROOT / "sdk" / "bars.json"
BEGIN, END = "<!-- measured: ./test adapters -->\n", "<!-- end -->\n"

Row = dict[str, Any]
Cell = Optional[dict[str, Any]]
LANGUAGES = {"python": "Python", "typescript": "TypeScript"}


def _counts(cell: dict[str, Any]) -> str:
    return f"{cell['tools']}/{cell['models']}"


# Column: its title, and how a cell is written.
COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "loop": ("loop", _counts),
    "cap": ("cap", _counts),
    "cap_streamed": ("cap, streamed", _counts),
    "no_usage": ("no usage", _counts),
    "at_once": ("64 at once", lambda cell: f"${cell['usd']:.2f}"),
    "restart": ("restart", _counts),
    "users": ("healthy users", lambda cell: f"{cell['healthy']}/{cell['of']}"),
}


def bars() -> dict[str, dict[str, Any]]:
    """The worst that a cell may be, by column."""
    told: dict[str, dict[str, Any]] = json.loads(BARS.read_text(encoding="utf-8"))
    return told


def _holds(cell: dict[str, Any], bar: dict[str, Any]) -> bool:
    """More calls or dollars are worse, and fewer healthy users are."""
    return all(cell[name] >= most if name == "healthy" else cell[name] <= most for name, most in bar.items())


def worse(rows: list[Row]) -> list[str]:
    """A sentence for each cell that is worse than its bar."""
    return [
        f"{row['framework']} ({LANGUAGES[row['language']]}): {title} is {shown(row[column])}, worse than the bar"
        for row in rows
        for column, (title, shown) in COLUMNS.items()
        if row.get(column) is not None and not _holds(row[column], bars()[column])
    ]


def markdown(rows: list[Row]) -> str:
    lines = ["| framework | version | " + " | ".join(title for title, _ in COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    lines.append("| *the worst that passes* | | " + " | ".join(f"*{shown(bars()[column])}*" for column, (_, shown) in COLUMNS.items()) + " |")
    for row in rows:
        cells = ["–" if row.get(column) is None else shown(row[column]) for column, (_, shown) in COLUMNS.items()]
        name = row["framework"] if row["language"] == "python" else f"{row['framework']} (TypeScript)"
        lines.append("| " + " | ".join([name, row["version"], *cells]) + " |")
    return "\n".join(lines) + "\n"


def kept() -> list[Row]:
    rows: list[Row] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else []
    return rows


def merged(rows: list[Row], fresh: list[Row]) -> list[Row]:
    by_name = {(row["language"], row["framework"]): row for row in [*rows, *fresh]}
    return [by_name[key] for key in sorted(by_name, key=lambda key: (key[0], key[1].casefold()))]


def keep(rows: list[Row]) -> None:
    KEPT.write_text("[\n" + ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows) + "\n]\n", encoding="utf-8")


def page_with(rows: list[Row]) -> str:
    page = PAGE.read_text(encoding="utf-8")
    found = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not found.search(page):
        raise SystemExit(f"{PAGE} has no place for the table: it stands between {BEGIN.strip()} and {END.strip()}.")
    return found.sub(lambda _: f"{BEGIN}\n{markdown(rows)}\n{END}", page)


def problems() -> list[str]:
    rows = kept()
    stale = [] if PAGE.read_text(encoding="utf-8") == page_with(rows) else [f"{PAGE.name}: the table is not the one of {KEPT.name}. Run table.py."]
    return worse(rows) + stale


def take_over(fresh: list[Row]) -> None:
    rows = merged(kept(), fresh)
    keep(rows)
    PAGE.write_text(page_with(rows), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="The table of what was measured of each adapter.")
    parser.add_argument("--add", type=Path, help="a file with rows to take over")
    parser.add_argument("--check", action="store_true", help="change nothing, say what is wrong")
    options = parser.parse_args()
    if not options.check:
        take_over(json.loads(options.add.read_text(encoding="utf-8")) if options.add else [])
    found = problems()
    print("\n".join(found), file=sys.stderr) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
