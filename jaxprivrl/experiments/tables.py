"""Tables as text: plain for the terminal, Markdown and CSV for files."""

import csv
import io
import math
from collections.abc import Mapping
from typing import Any


def cell(value: Any) -> str:
    """A value for people: four significant digits; what is nested is written out, never as Python would."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < math.inf else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {cell(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value)
    return str(value)


def facts(values: Mapping[str, Any], meanings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows of quantity, value and meaning; numbers by key get a row each, their key standing for {} in the meaning."""
    rows = []
    for name, value in values.items():
        for key, item in value.items() if isinstance(value, Mapping) else [("", value)]:
            rows.append(
                {
                    "quantity": name,
                    "value": "none" if item is None else item,
                    "meaning": meanings.get(name, "").replace("{}", str(key)),
                }
            )
    return rows


def plain(rows: list[dict[str, Any]]) -> str:
    """Aligned columns, numbers to the right."""
    names = list(rows[0]) if rows else []
    texts = [[cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(n), *(len(t[i]) for t in texts)) for i, n in enumerate(names)]
    right = [all(isinstance(row.get(n), (int, float)) or row.get(n) is None for row in rows) for n in names]

    def line(cells: list[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)).rstrip()

    return "\n".join([line(names), line(["-" * w for w in widths]), *(line(t) for t in texts)])


def markdown(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    names = list(rows[0]) if rows else []
    body = [[" ".join(cell(row.get(name)).replace("|", "\\|").split()) for name in names] for row in rows]
    lines = [names, ["---"] * len(names), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Comma-separated values with all digits."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
