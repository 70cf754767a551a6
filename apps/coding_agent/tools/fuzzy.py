"""Finding a text that a model has copied almost exactly.

Overlooked are white space at line ends, how wide a run of spaces is, and the shapes of quotation
marks and dashes. A text counts as unique only when it is so under these rules too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

_SPACE = " \t\u00a0\u2000-\u200a\u202f\u205f\u3000"
_TOKENS: Final = re.compile(
    rf"(?P<end>[{_SPACE}\r]+(?=\n))|(?P<space>[{_SPACE}]+)"
    r"|(?P<single>[\u2018-\u201b])|(?P<double>[\u201c-\u201f])|(?P<dash>[\u2010-\u2015\u2212])"
)
_PLAIN: Final = {"end": "", "space": " ", "single": "'", "double": '"', "dash": "-"}


@dataclass(frozen=True, slots=True)
class Found:
    """How often the text occurs, and where it does when that is once."""

    count: int
    start: int = 0
    end: int = 0


@dataclass(slots=True)
class _Folded:
    """A text under the rules: its first `ends[i]` characters are `sources[i]` of the original."""

    text: str = ""
    ends: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)

    def source(self, position: int) -> int:
        """The position in the original that `position` stands for."""
        index = bisect_right(self.ends, position) - 1
        if index < 0:
            return position
        return self.sources[index] + position - self.ends[index]


def find(text: str, wanted: str) -> Found:
    """Where `wanted`, which is not empty, is in `text`."""
    exact = _count(text, wanted)
    folded, sought = _fold(text), _fold(wanted).text
    if not sought.strip():  # nothing but white space can only be meant exactly
        return Found(exact, *_span(text, wanted)) if exact == 1 else Found(exact)
    if not exact and sought not in folded.text:
        # White space after its last word, where the file has a line end.
        sought = sought.rstrip(" ")
    count = max(exact, _count(folded.text, sought))
    if count != 1:
        return Found(count)
    if exact:
        return Found(1, *_span(text, wanted))
    start, end = _span(folded.text, sought)
    return Found(1, folded.source(start), folded.source(end))


def _span(text: str, wanted: str) -> tuple[int, int]:
    start = text.index(wanted)
    return start, start + len(wanted)


def _count(text: str, wanted: str) -> int:
    """Occurrences, overlapping ones too: either could be the one that is meant."""
    count, position = 0, text.find(wanted)
    while position >= 0:
        count += 1
        position = text.find(wanted, position + 1)
    return count


def _fold(text: str) -> _Folded:
    folded = _Folded()
    parts: list[str] = []
    done = length = 0
    for token in _TOKENS.finditer(text):
        plain = _PLAIN[str(token.lastgroup)]
        kept = text[done : token.start()]
        parts += (kept, plain)
        done = token.end()
        length += len(kept) + len(plain)
        # A lone space that stays one moves nothing.
        if len(plain) != token.end() - token.start():
            folded.ends.append(length)
            folded.sources.append(done)
    folded.text = "".join((*parts, text[done:]))
    return folded
