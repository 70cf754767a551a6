"""The text of a file with its retired sections under their new names.

A section keeps its place, its comments and the text of its values: its header changes, and
`[agent]` becomes two sections. Keys of a table that is elsewhere in the file are put there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lemon_core.config import keys
from lemon_core.config.retired import Migrated, is_retired, new_path
from lemon_core.config.source import KeyPath
from lemon_core.config.statements import Statement, statements
from lemon_core.config.toml_edit import upsert, value_span
from lemon_core.config.toml_text import keys_text, line_end, literal_of


@dataclass(frozen=True, slots=True)
class _Piece:
    """A header or an assignment with the comments and blank lines above it."""

    at: Statement
    lead: str
    text: str

    @property
    def comment(self) -> str:
        """What stands behind its value, line end excluded."""
        return self.text[value_span(self.text)[1] :].strip()


@dataclass(slots=True)
class _Section:
    """A header (None for the top of the file) and what stands below it."""

    header: _Piece | None
    items: list[_Piece] = field(default_factory=list)

    @property
    def path(self) -> KeyPath:
        return () if self.header is None else self.header.at.path


@dataclass(frozen=True, slots=True)
class _Move:
    """A value on its way to `target`; without `literal` the whole statement goes as it is."""

    piece: _Piece
    target: KeyPath
    literal: str | None = None


def renamed(text: str, result: Migrated) -> str:
    """`text` with the retired keys moved as `result` says.

    Raises ValueError and `TomlEditError` for a text that cannot be taken apart. The caller checks
    what came out.
    """
    sections, tail = _sections(text)
    writer = _Writer(result, sections, line_end(text))
    for section in sections:
        if is_retired(section.path):
            writer.retired(section)
        else:
            writer.current(section)
    return writer.finished(tail)


class _Writer:
    """Puts the new text together, section by section."""

    def __init__(self, result: Migrated, sections: list[_Section], nl: str) -> None:
        self._result, self._nl = result, nl
        self._current = [
            piece.at
            for section in sections
            for piece in ([section.header] if section.header else []) + section.items
            if not is_retired(piece.at.path)
        ]
        self._made: set[KeyPath] = set()
        self._out: list[str] = []
        self._later: list[_Move] = []

    def current(self, section: _Section) -> None:
        """A section that stays, without the retired keys that dots or braces put into it."""
        if section.header is not None:
            self._emit(section.header.lead, section.header.text)
        for item in section.items:
            if is_retired(item.at.path):
                moves = list(self._moves(item))
                self._later += [move for move in moves if move.target != item.at.path]
                if any(move.target == item.at.path for move in moves):
                    self._emit(item.lead, item.text)
            else:
                self._emit(item.lead, item.text)

    def retired(self, section: _Section) -> None:
        """A retired section, as the sections that its keys belong to."""
        header = section.header
        assert header is not None  # the top of a file is not retired
        lead, comment = header.lead, _behind(header.text)
        for target, moves in self._groups(section).items():
            if target != section.path and not self._is_free(target):
                self._later += moves
                continue
            self._made.add(target)
            self._emit(lead, f"{_header(target)}{f'  {comment}' if comment else ''}{self._nl}")
            lead, comment = self._nl, ""
            for move in moves:
                self._emit(move.piece.lead, self._statement(move, target, section.path))
        if lead != self._nl:
            # Nothing took the section's place; what was said above it may concern what follows.
            self._emit(lead, f"{comment}{self._nl}" if comment else "")

    def finished(self, tail: str) -> str:
        """The whole text, with the keys that had to go elsewhere."""
        text = "".join([*self._out, tail])
        for move in self._later:
            text = self._placed(text, move)
        return text

    def _groups(self, section: _Section) -> dict[KeyPath, list[_Move]]:
        """The moves of the section's keys by the header that they go below, in order."""
        groups: dict[KeyPath, list[_Move]] = {}
        moves = [move for item in section.items for move in self._moves(item)]
        own = new_path(section.path)
        if not moves and own is not None and section.path != ("agent",) and not section.items:
            return {own: []}
        for move in moves:
            if is_retired(move.target):
                below = section.path
            elif section.path == ("agent",) or own is None:
                below = move.target[:1]
            else:
                below = own
            groups.setdefault(below, []).append(move)
        return groups

    def _moves(self, item: _Piece) -> Iterator[_Move]:
        """Where the values of an assignment go; those that are dropped go nowhere."""
        path, result = item.at.path, self._result
        for old, new in result.moved.items():
            if path[: len(old)] == old:
                yield _Move(item, (*new, *path[len(old) :]))
                return
        if any(path[: len(old)] == old for old in result.staying):
            yield _Move(item, path)
            return
        # An inline table: whole where it can be, else value by value.
        inside = [old for old in result.moved if old[: len(path)] == path]
        lost = [*result.shadowed, *result.staying, *result.dropped]
        target = new_path(path)
        whole = inside and not any(old[: len(path)] == path for old in lost)
        if whole and target and path != ("agent",) and self._is_free(target):
            yield _Move(item, target)
            return
        for old in inside:
            value = keys.get(result.data, result.moved[old])
            yield _Move(item, result.moved[old], literal_of(value))

    def _is_free(self, table: KeyPath) -> bool:
        """Whether a header for `table` may be written here."""
        if isinstance(table[-1], int):
            return True  # one more of an array that is moved as a whole
        if table in self._made:
            return False
        return not any(_makes(part, table) for part in self._current)

    def _statement(self, move: _Move, target: KeyPath, section: KeyPath) -> str:
        text, relative = move.piece.text, move.target[len(target) :]
        if move.literal is not None:
            return f"{keys_text(relative)} = {move.literal}{self._nl}"
        if relative == move.piece.at.path[len(section) :]:
            return text
        indent = text[: len(text) - len(text.lstrip(" \t"))]
        return f"{indent}{keys_text(relative)} = {text[value_span(text)[0] :]}"

    def _placed(self, text: str, move: _Move) -> str:
        """`text` with a value in a table that is there already, and its comments around it."""
        start, end = value_span(move.piece.text)
        literal = move.piece.text[start:end] if move.literal is None else move.literal
        text = upsert(text, move.target[:-1], str(move.target[-1]), literal)
        found = next((p for p in statements(text).items if p.path == move.target), None)
        if found is None or move.literal is not None:
            return text
        whole = text[found.start : found.end]
        comment = move.piece.comment
        if comment:
            at = value_span(whole)[1]
            whole = f"{whole[:at]}  {comment}{whole[at:]}"
        above = [line.strip() for line in move.piece.lead.split("\n")]
        lead = "".join(f"{line}{self._nl}" for line in above if line)
        return f"{text[: found.start]}{lead}{whole}{text[found.end :]}"

    def _emit(self, lead: str, text: str) -> None:
        if self._out and self._out[-1] and not self._out[-1].endswith("\n"):
            self._out.append(self._nl)
        self._out += [lead, text]


def _sections(text: str) -> tuple[list[_Section], str]:
    """The sections of a document, and what stands below the last statement."""
    found = statements(text)
    if not found.complete:
        raise ValueError("a statement is too long to be moved")
    sections, end = [_Section(None)], 0
    for at in found.items:
        piece = _Piece(at, text[end : at.start], text[at.start : at.end])
        if at.is_header:
            sections.append(_Section(piece))
        else:
            sections[-1].items.append(piece)
        end = at.end
    return sections, text[end:]


def _behind(header: str) -> str:
    """The comment behind a header."""
    import tomllib

    at = header.find("]")
    while at >= 0:
        try:
            tomllib.loads(header[: at + 1])
            return header[at + 1 :].strip()
        except tomllib.TOMLDecodeError:
            at = header.find("]", at + 1)  # the second one of an array, or part of a quoted key
    return ""


def _makes(part: Statement, table: KeyPath) -> bool:
    """Whether `table` is there because of this statement, so that no header may name it again."""
    if part.is_header:
        return part.path == table
    if len(part.path) <= len(table):
        return table[: len(part.path)] == part.path
    return len(part.section) < len(table) and part.path[: len(table)] == table


def _header(path: KeyPath) -> str:
    is_array = isinstance(path[-1], int)
    return f"[[{keys_text(path)}]]" if is_array else f"[{keys_text(path)}]"
