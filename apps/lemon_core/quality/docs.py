"""The link check: every local Markdown link points at something that is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from lemon_core.quality.report import CheckReport, Issue
from lemon_core.quality.tree import APPS, walk

NAME = "docs_links"
_FOREIGN = ("http://", "https://", "mailto:")
_TARGETS = {"link_open": "href", "image": "src"}


@dataclass(frozen=True, slots=True)
class Link:
    target: str
    line: int


def check(root: Path) -> CheckReport:
    """Resolve the links of `docs/**/*.md`, of the Markdown at the top and of the apps' READMEs.

    Anchors are dropped, a leading `/` means the repository root, folders count as files do.
    """
    issues: list[Issue] = []
    for document in _documents(root):
        for link in links((root / document).read_text("utf-8")):
            if not _resolves(root, document, link.target):
                place = f"{document}:{link.line}"
                issues.append(Issue("broken_link", f"nothing at {link.target}", path=place))
    return CheckReport.of(NAME, issues)


def links(text: str) -> list[Link]:
    """Local links and images of a Markdown text, inline or by reference; none out of code."""
    return [link for token in MarkdownIt("commonmark").parse(text) for link in _of(token)]


def _documents(root: Path) -> Iterator[Path]:
    yield from (Path(path.name) for path in sorted(root.glob("*.md")))
    yield from (path.relative_to(root) for path in sorted(root.glob(f"{APPS}/*/README.md")))
    if (root / "docs").is_dir():
        yield from (path for path in walk(root, "docs") if path.suffix == ".md")


def _of(token: Token) -> Iterator[Link]:
    line = token.map[0] + 1 if token.map else 1
    for child in token.children or ():
        # Line breaks inside the block keep the number right in long paragraphs.
        if child.type in ("softbreak", "hardbreak"):
            line += 1
        target = str(child.attrs.get(_TARGETS.get(child.type, ""), ""))
        if target and not target.startswith(("#", *_FOREIGN)):
            yield Link(target, line)


def _resolves(root: Path, document: Path, target: str) -> bool:
    path = unquote(target.partition("#")[0])
    base = PurePosixPath() if path.startswith("/") else PurePosixPath(document.parent)
    resolved: list[str] = []
    for part in (base / path.lstrip("/")).parts:
        if part == ".." and not resolved:
            return False  # climbs out of the repository
        if part == "..":
            resolved.pop()
        else:
            resolved.append(part)
    return root.joinpath(*resolved).exists()
