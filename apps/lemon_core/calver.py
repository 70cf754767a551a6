"""Versions of releases: `YYYY.MM.PATCH`, with a suffix for what comes before a release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

_FORM: Final = re.compile(
    r"(\d{4})\.(0[1-9]|1[0-2])\.(0|[1-9]\d{0,8})(?:-([0-9A-Za-z]+(?:[.-][0-9A-Za-z]+)*))?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True)
class CalVer:
    """A version. One with a suffix comes before the same one without."""

    year: int
    month: int
    patch: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> CalVer:
        """Raises `ValueError` for text of another form."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r:.60} is no version: a version is YYYY.MM.PATCH")
        year, month, patch, suffix = match.groups()
        return cls(int(year), int(month), int(patch), suffix or "")

    def __str__(self) -> str:
        tail = f"-{self.suffix}" if self.suffix else ""
        return f"{self.year:04d}.{self.month:02d}.{self.patch}{tail}"

    def __lt__(self, other: CalVer) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[object, ...]:
        # Numbers compare as numbers and come before words, so that `rc.10` follows `rc.9`.
        parts = tuple(
            (0, int(part), "") if part.isdecimal() else (1, 0, part)
            for part in re.split(r"[.-]", self.suffix)
        )
        return (self.year, self.month, self.patch, not self.suffix, parts)
