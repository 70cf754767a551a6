"""The readable part of a web page as Markdown or plain text; nothing of it is run or loaded.

What a page marks as its content (`article`, `main`) is taken when there is enough of it, else all
of it but menus, forms, scripts and what is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final, Literal
from urllib.parse import urljoin, urlsplit

from lemon_core.tool_classes import words

Mode = Literal["markdown", "text"]

MIN_CONTENT_CHARS: Final = 200
_SKIPPED: Final = frozenset(
    words(
        "script style noscript template svg canvas iframe object nav footer aside form button "
        "select option head dialog"
    )
)
_VOID: Final = frozenset(
    words("area base br col embed hr img input link meta param source track wbr")
)
_BLOCKS: Final = frozenset(
    words(
        "address article blockquote dd div dl dt fieldset figcaption figure h1 h2 h3 h4 h5 h6 "
        "header hr li main ol p pre section table tbody thead tr ul"
    )
)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says; `extractor` tells which part of it was taken."""

    title: str
    text: str
    extractor: str


@dataclass(slots=True)
class _Part:
    pieces: list[str] = field(default_factory=list)

    def text(self) -> str:
        return tidy("".join(self.pieces))


def extract(html: str, url: str, mode: Mode) -> Page:
    """The page's title and text; never raises for broken markup."""
    reader = _Reader(url, mode)
    reader.feed(html)
    reader.close()
    content = reader.content.text()
    if len(content) >= MIN_CONTENT_CHARS:
        return Page(tidy(reader.title), content, "content")
    return Page(tidy(reader.title), reader.whole.text(), "page")


def tidy(text: str) -> str:
    """Without white space at line ends and with at most one empty line in a row."""
    lines = [re.sub(r"[ \t\xa0]+$", "", line) for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Reader(HTMLParser):
    """Builds two texts at once: of the marked content, and of the whole page."""

    def __init__(self, url: str, mode: Mode) -> None:
        super().__init__(convert_charrefs=True)
        self._url, self._markdown = url, mode == "markdown"
        self._skipped: list[str] = []
        self._content_depth = 0
        self._in_title = False
        self._pre = 0
        self._lists: list[str] = []
        self._links: list[str | None] = []
        self.title = ""
        self.whole, self.content = _Part(), _Part()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "title" and not self.title:
            self._in_title = True
        if self._skipped:
            if tag == self._skipped[-1]:
                self._skipped.append(tag)
            return
        hidden = "hidden" in given or given.get("aria-hidden") == "true"
        if (tag in _SKIPPED or hidden) and tag not in _VOID:
            self._skipped.append(tag)
            return
        if tag in ("article", "main"):
            self._content_depth += 1
        self._open(tag, given)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if self._skipped:
            if tag == self._skipped[-1]:
                self._skipped.pop()
            return
        self._close(tag)
        if tag in ("article", "main"):
            self._content_depth = max(0, self._content_depth - 1)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += " ".join(data.split())
        if self._skipped:
            return
        if self._pre:
            self._add(data)
            return
        text = re.sub(r"\s+", " ", data)
        if text == " " and self._ends_line():
            return
        self._add(text.lstrip() if self._ends_line() else text)

    def _open(self, tag: str, given: dict[str, str | None]) -> None:
        if tag in _BLOCKS:
            self._add("\n" if tag in ("li", "tr", "dt", "dd") else "\n\n")
        if tag == "br":
            self._add("\n")
        elif tag == "pre":
            self._pre += 1
            self._mark("```\n")
        elif tag == "li":
            self._add("  " * max(0, len(self._lists) - 1) + "- ")
        elif tag in ("ul", "ol"):
            self._lists.append(tag)
        elif tag in ("td", "th"):
            self._add(" | ")
        elif re.fullmatch(r"h[1-6]", tag):
            self._mark("#" * int(tag[1]) + " ")
        elif tag == "a":
            self._links.append(self._target(given.get("href")))
            if self._links[-1]:
                self._mark("[")
        elif tag in ("code", "kbd") and not self._pre:
            self._mark("`")
        elif tag == "img" and given.get("alt"):
            self._add(f"[image: {given['alt']}]")

    def _close(self, tag: str) -> None:
        if tag == "pre" and self._pre:
            self._pre -= 1
            self._mark("\n```")
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif tag == "a" and self._links:
            target = self._links.pop()
            if target:
                self._mark(f"]({target})")
        elif tag in ("code", "kbd") and not self._pre:
            self._mark("`")
        if tag in _BLOCKS and tag not in ("li", "tr", "dt", "dd"):
            self._add("\n\n")

    def _target(self, href: str | None) -> str | None:
        try:
            target = urljoin(self._url, href or "")
            is_page = urlsplit(target).scheme in ("http", "https")
        except ValueError:
            return None
        return target if href and not href.startswith("#") and is_page else None

    def _mark(self, text: str) -> None:
        """Markup, which plain text goes without."""
        if self._markdown:
            self._add(text)

    def _add(self, text: str) -> None:
        self.whole.pieces.append(text)
        if self._content_depth:
            self.content.pieces.append(text)

    def _ends_line(self) -> bool:
        last = next((piece for piece in reversed(self.whole.pieces) if piece), "\n")
        return last.endswith(("\n", " "))
