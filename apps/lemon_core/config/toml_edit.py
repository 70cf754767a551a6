"""Set or delete one key of a TOML text; every other byte stays.

An edit replaces, inserts or cuts one piece of the text, so comments, order, quoting, line ends and
references like `${VAR}` elsewhere cannot change. What comes out is read again and has to say
exactly what was asked for; what cannot be edited that way is refused, never rewritten.
"""

from __future__ import annotations

import json
import re

from lemon_core.config.source import KeyPath, dotted
from lemon_core.config.statements import Statement, Statements, split_assignment, statements
from lemon_core.config.toml_text import keys_text, line_end
from lemon_core.errors import LemonError


class TomlEditError(LemonError):
    """The key cannot be changed in this text; nothing was changed."""

    code = "toml_edit"

    def __init__(self, path: KeyPath, detail: str) -> None:
        super().__init__(f"{dotted(path)}: {detail}" if path else detail)
        self.path, self.detail = path, detail


def upsert(text: str, table: KeyPath, key: str, literal: str) -> str:
    """`text` with `key` of `table` set to the TOML value `literal`; raises `TomlEditError`.

    A key that is there keeps its place and its comment; a new one comes last in its table, and a
    new table last in the text. An element of an array of tables is named by its index.
    """
    path = (*table, key)
    _value_of(literal, path)
    found = _parts(text, path)
    holder = _holder(found, path)
    if holder is not None:
        edited = _in_value(text, holder, path, literal)
    elif _is_table(found, path):
        raise TomlEditError(path, "is a table: set the keys in it")
    else:
        _refuse_array(found, path)
        edited = _inserted(text, found, path, literal)
    return _checked(text, edited, path, literal)


def delete(text: str, table: KeyPath, key: str) -> str:
    """`text` without `key` of `table`, as it is when there is none; raises `TomlEditError`.

    The key's lines go, with the comment on them; comments above stay, and so does an empty table.
    """
    path = (*table, key)
    found = _parts(text, path)
    holder = _holder(found, path)
    if holder is None:
        if _is_table(found, path):
            raise TomlEditError(path, "is a table: delete the keys in it")
        return text
    if holder.path == path:
        return _checked(text, text[: holder.start] + text[holder.end :], path, None)
    if not _exists(text, path):
        return text
    return _checked(text, _in_value(text, holder, path, None), path, None)


def _parts(text: str, path: KeyPath) -> Statements:
    import tomllib

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise TomlEditError((), f"malformed TOML: {exc}") from exc
    found = statements(text)
    if not found.complete:
        raise TomlEditError(path, "the file has a value of too many lines: edit it by hand")
    return found


def _holder(found: Statements, path: KeyPath) -> Statement | None:
    """The assignment that holds the key: its own, or that of an inline table around it."""
    for part in found.items:
        if not part.is_header and path[: len(part.path)] == part.path:
            return part
    return None


def _is_table(found: Statements, path: KeyPath) -> bool:
    return any(part.path[: len(path)] == path for part in found.items)


def _refuse_array(found: Statements, path: KeyPath) -> None:
    for part in found.items:
        for at, step in enumerate(part.path):
            if at == len(path) or type(step) is not type(path[at]):
                if isinstance(step, int) and at < len(path):
                    raise TomlEditError(
                        path, f"{dotted(path[:at])} is an array of tables: say which one, [0] first"
                    )
                break
            if step != path[at]:
                break
    for at, step in enumerate(path):
        if isinstance(step, int) and not _is_table(found, path[: at + 1]):
            raise TomlEditError(path, f"there is no {dotted(path[: at + 1])}")


def _in_value(text: str, holder: Statement, path: KeyPath, literal: str | None) -> str:
    """`text` with the value of `holder` replaced, or with one key inside that value changed."""
    start, end = value_span(text[holder.start : holder.end])
    start, end = holder.start + start, holder.start + end
    inner = path[len(holder.path) :]
    if inner or literal is None:
        value = _edited_inline(text[start:end], inner, path, literal)
    else:
        value = literal
    return text[:start] + value + text[end:]


def value_span(assignment: str) -> tuple[int, int]:
    """Where the value stands in the text of an assignment."""
    import tomllib

    _, behind = split_assignment(assignment)
    start = behind + len(assignment[behind:]) - len(assignment[behind:].lstrip(" \t"))
    last_line = assignment.rstrip("\r\n").rfind("\n") + 1
    at = assignment.find("#", max(last_line, start))
    while at >= 0:
        try:
            tomllib.loads(f"x = {assignment[start:at]}")
            break
        except tomllib.TOMLDecodeError:
            at = assignment.find("#", at + 1)  # that one belonged to a string
    end = len(assignment) if at < 0 else at
    return start, start + len(assignment[start:end].rstrip())


def _edited_inline(value: str, inner: KeyPath, path: KeyPath, literal: str | None) -> str:
    """The inline table or array `value` with the key at `inner` set, or gone without `literal`."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError
    from tomlkit.items import AbstractTable, Array

    try:
        document = tomlkit.parse(f"x = {value}")
        table: object = document["x"]
        for step in inner[:-1]:
            if isinstance(table, AbstractTable) and isinstance(step, str) and step not in table:
                table.append(step, tomlkit.inline_table())
            if not isinstance(table, AbstractTable | Array):
                break
            table = table[step]  # type: ignore[index]  # a step that does not fit raises below
        if not isinstance(table, AbstractTable):
            raise TomlEditError(path, "what it would stand in is no table")
        if literal is None:
            table.remove(str(inner[-1]))
        else:
            table[str(inner[-1])] = tomlkit.parse(f"x = {literal}")["x"]
        return tomlkit.dumps(document).removeprefix("x = ")
    except (TOMLKitError, LookupError, TypeError) as exc:
        raise TomlEditError(path, "cannot be changed inside its inline value") from exc


def _inserted(text: str, found: Statements, path: KeyPath, literal: str) -> str:
    """`text` with a new assignment, in the table of the key or in a new one at the end."""
    table, nl = path[:-1], line_end(text)
    siblings = [part for part in found.items if part.section == table]
    if not siblings:
        # The table may be there without a header, by dotted keys only.
        siblings = [p for p in found.items if table and _dots_into(p, table)]
    if not siblings and any(isinstance(step, int) for step in table):
        above = [p.section for p in found.items if table[: len(p.section)] == p.section]
        deep = max(above, key=len)
        siblings = [part for part in found.items if part.section == deep]
    if siblings:
        last = siblings[-1]
        indent = re.match(r"[ \t]*", text[last.start :])
        line = f"{keys_text(path[len(last.section) :])} = {literal}{nl}"
        before = text[: last.end]
        before += "" if before.endswith("\n") else nl
        return f"{before}{indent[0] if indent else ''}{line}{text[last.end :]}"
    line = f"{keys_text(path[-1:])} = {literal}{nl}"
    if not table and found.items:
        at = _above(text, found.items[0].start)
        return f"{text[:at]}{line}{nl}{text[at:]}"
    before = text + ("" if not text or text.endswith("\n") else nl)
    gap = nl if before.strip() and not before.endswith(f"{nl}{nl}") else ""
    return f"{before}{gap}[{keys_text(table)}]{nl}{line}" if table else f"{before}{line}"


def _dots_into(part: Statement, table: KeyPath) -> bool:
    """Whether it is dotted keys of this assignment that make the table."""
    own = len(part.section) < len(table)
    return own and not part.is_header and part.path[: len(table)] == table


def _above(text: str, at: int) -> int:
    """The start of the comment lines right above the line at `at`."""
    while at > 0:
        start = text.rfind("\n", 0, at - 1) + 1
        if not text[start:at].lstrip().startswith("#"):
            break
        at = start
    return at


def _checked(before: str, after: str, path: KeyPath, literal: str | None) -> str:
    """`after`, when it says what `before` does but for the value at `path`."""
    import tomllib

    refusal = TomlEditError(path, "cannot be changed without touching other keys: edit it by hand")
    expected = tomllib.loads(before)
    try:
        found = tomllib.loads(after)
    except tomllib.TOMLDecodeError:
        raise refusal from None
    if literal is None:
        _remove(expected, path)
        # A table that dotted keys alone made goes with the last of them.
        _remove(found, path)
    else:
        _put(expected, path, _value_of(literal, path))
    if _canonical(found) != _canonical(expected):
        raise refusal
    return after


def _put(data: dict[str, object], path: KeyPath, value: object) -> None:
    at: object = data
    for step in path[:-1]:
        if isinstance(at, list) and isinstance(step, int):
            at = at[step]
        elif isinstance(at, dict):
            at = at.setdefault(step, {})
    if isinstance(at, dict):
        at[path[-1]] = value


def _remove(at: object, path: KeyPath) -> None:
    """Take the value at `path` out, and the tables around it that are empty then."""
    step, *rest = path
    if isinstance(at, dict) and step in at:
        if rest:
            _remove(at[step], tuple(rest))
        if not rest or at[step] == {}:
            del at[step]
    elif isinstance(at, list) and isinstance(step, int) and step < len(at):
        _remove(at[step], tuple(rest))


def _exists(text: str, path: KeyPath) -> bool:
    import tomllib

    at: object = tomllib.loads(text)
    for step in path:
        try:
            at = at[step]  # type: ignore[index]  # what has no such step says so
        except (LookupError, TypeError):
            return False
    return True


def _value_of(literal: str, path: KeyPath) -> object:
    import tomllib

    try:
        parsed = tomllib.loads(f"x = {literal}")
    except tomllib.TOMLDecodeError:
        # Without the text, which may be a credential; the parser's message may quote it too.
        raise TomlEditError(path, "the new value is not a TOML value") from None
    if len(parsed) != 1 or value_span(f"x = {literal}") != (4, 4 + len(literal)):
        raise TomlEditError(path, "the new value is not one TOML value")
    return parsed["x"]


def _canonical(data: object) -> str:
    # Equality would miss that a NaN is a NaN and that `true` is not 1.
    return json.dumps(data, sort_keys=True, default=repr)
