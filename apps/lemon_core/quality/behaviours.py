"""The behaviour check: what `docs/behaviours/<app>.md` lists is shown by a test, and only that.

A list item is a line `7. text`; lines below it that are indented belong to it. A test names it with
`@pytest.mark.behaviour("<app>.7")` or in a `pytestmark`, several ids in one mark where it shows
several. Marks are read out of the syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lemon_core.quality.report import CheckReport, Issue
from lemon_core.quality.tree import app_names, walk

NAME = "behaviours"
FOLDER = "docs/behaviours"

_ITEM = re.compile(r"^(\d+)\. \S")
_ALMOST_ITEM = re.compile(r"^\s{0,3}(\d+)(?:[.)]|\\\.)")
_ID = re.compile(r"^[a-z][a-z0-9_]*\.[1-9]\d*$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a behaviour is listed or named."""

    behaviour: str
    path: str


def check(root: Path) -> CheckReport:
    """Compare the lists with the marks, in both directions."""
    issues: list[Issue] = []
    listed = {place.behaviour: place for place in _listed(root, issues)}
    named: dict[str, list[Place]] = defaultdict(list)
    for place in _named(root, issues):
        named[place.behaviour].append(place)
    for behaviour in listed.keys() - named.keys():
        message = f"no test is marked with behaviour({behaviour!r})"
        issues.append(_issue("behaviour_without_test", message, listed[behaviour]))
    for behaviour in named.keys() - listed.keys():
        first, *others = named[behaviour]
        also = f" (named in {len(others)} more places)" if others else ""
        message = f"{behaviour} is not listed in {FOLDER}/{behaviour.partition('.')[0]}.md{also}"
        issues.append(_issue("unlisted_behaviour", message, first))
    return CheckReport.of(NAME, issues)


def _issue(code: str, message: str, place: Place) -> Issue:
    return Issue(code, message, place.behaviour.partition(".")[0], place.path)


def _listed(root: Path, issues: list[Issue]) -> Iterator[Place]:
    if not (root / FOLDER).is_dir():
        return
    apps = set(app_names(root))
    for path in walk(root, FOLDER):
        if path.suffix != ".md" or path.stem == "README":
            continue
        if path.stem not in apps:
            message = f"there is no app {path.stem}"
            issues.append(Issue("unknown_app", message, path.stem, str(path)))
        yield from _items(path, (root / path).read_text("utf-8"), issues)


def _items(path: Path, text: str, issues: list[Issue]) -> Iterator[Place]:
    last = 0
    for number, line in enumerate(text.splitlines(), start=1):
        place = Place(path.stem, f"{path}:{number}")
        match = _ITEM.match(line)
        if match is None:
            if _ALMOST_ITEM.match(line):
                message = f"an item is written `7. text`, this is {line.strip()[:40]!r}"
                issues.append(_issue("malformed_behaviour", message, place))
            continue
        if int(match[1]) <= last:
            message = f"{match[1]} stands after {last}; numbers are sorted and appear once"
            issues.append(_issue("malformed_behaviour", message, place))
        last = int(match[1])
        yield Place(f"{path.stem}.{last}", place.path)


def _named(root: Path, issues: list[Issue]) -> Iterator[Place]:
    for path in walk(root):
        if path.suffix != ".py" or not {"tests", "testing", "e2e"} & set(path.parts):
            continue
        try:
            tree = ast.parse((root / path).read_text("utf-8"))
        except (SyntaxError, ValueError) as exc:
            line = getattr(exc, "lineno", None) or 1
            issues.append(Issue("source_parse_error", str(exc), path=f"{path}:{line}"))
            continue
        for mark in _marks(tree):
            place = f"{path}:{mark.lineno}"
            ids = _ids(mark)
            if not ids:
                message = f'`{ast.unparse(mark)}` does not name behaviours as "<app>.<number>"'
                issues.append(Issue("malformed_behaviour", message, path=place))
            yield from (Place(behaviour, place) for behaviour in ids)


def _marks(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls of `pytest.mark.behaviour` that reach a test: decorators and `pytestmark`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                yield from _calls(node.decorator_list)
            case ast.ClassDef():
                yield from _calls(node.decorator_list)
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield from _calls([value])
            case ast.AnnAssign(target=ast.Name(id="pytestmark"), value=ast.expr() as value):
                yield from _calls([value])


def _calls(nodes: Iterable[ast.expr]) -> Iterator[ast.Call]:
    for node in nodes:
        for child in ast.walk(node):
            match child:
                case ast.Call(
                    func=ast.Attribute(attr="behaviour", value=ast.Attribute(attr="mark"))
                ):
                    yield child


def _ids(mark: ast.Call) -> list[str]:
    """The behaviours that a mark names; none when it is not written as literal ids."""
    ids = [arg.value for arg in mark.args if isinstance(arg, ast.Constant)]
    texts = [text for text in ids if isinstance(text, str) and _ID.match(text)]
    return texts if len(texts) == len(mark.args) and not mark.keywords else []
