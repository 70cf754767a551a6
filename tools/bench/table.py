"""What a benchmark prints: one row per number, with its aim beside it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a number should be."""

    kind: Literal["at_most", "at_least"]
    limit: float

    def met(self, value: float) -> bool:
        """True when `value` is there."""
        match self.kind:
            case "at_most":
                return value <= self.limit
            case "at_least":
                return value >= self.limit
            case _:
                assert_never(self.kind)

    def __str__(self) -> str:
        return f"{'≤' if self.kind == 'at_most' else '≥'} {self.limit:g}"


def at_most(limit: float) -> Aim:
    """Not more than `limit`."""
    return Aim("at_most", limit)


def at_least(limit: float) -> Aim:
    """Not less than `limit`."""
    return Aim("at_least", limit)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured number. A row without an aim is there to explain others."""

    name: str
    value: float
    unit: str
    aim: Aim | None = None

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without one."""
        return None if self.aim is None else self.aim.met(self.value)


_VERDICT = {True: "yes", False: "no", None: ""}


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, columns padded so that it reads well in a terminal too.

    The columns of the aims are there when a row has one.
    """
    cells: list[tuple[str, ...]] = [("", "measured", "unit", "aim", "met")]
    for row in rows:
        aim = "" if row.aim is None else str(row.aim)
        cells.append((row.name, number(row.value), row.unit, aim, _VERDICT[row.met]))
    shown = 5 if any(row.aim for row in rows) else 3
    cells = [line[:shown] for line in cells]
    widths = [max(3, *(len(line[column]) for line in cells)) for column in range(shown)]
    rule = "|".join(
        "-" * (width + 1) + (":" if column in (1, 3) else "-")
        for column, width in enumerate(widths)
    )
    head, *body = [_line(line, widths) for line in cells]
    return "\n".join([head, f"|{rule}|", *body])


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def machine_facts(began: float) -> dict[str, object]:
    """What belongs to every table; `began` is the value of `time.perf_counter` at the start."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "took_s": round(time.perf_counter() - began, 1),
    }


def show(rows: Sequence[Row], facts: Mapping[str, object], *, as_document: bool) -> str:
    """The rows with the facts below them: a table for people, or one JSON document."""
    if as_document:
        return as_json(rows, facts)
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"{markdown(rows)}\n\n{told}"


def as_json(rows: Sequence[Row], facts: Mapping[str, object]) -> str:
    """The rows and what is known of the run, as one JSON document."""
    document = {
        "facts": dict(facts),
        "rows": [
            {
                "name": row.name,
                "value": row.value,
                "unit": row.unit,
                "aim": None if row.aim is None else str(row.aim),
                "met": row.met,
            }
            for row in rows
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if column in (1, 3) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"
