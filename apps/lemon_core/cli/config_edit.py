"""Changing the global file from the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from itertools import product

from lemon_core.cli.base import note
from lemon_core.cli.config_view import UnknownKey, inspected
from lemon_core.commands import CommandContext
from lemon_core.config import keys
from lemon_core.config.contributed import Contributed
from lemon_core.config.origins import explain
from lemon_core.config.redact import HIDDEN, is_private
from lemon_core.config.source import KeyPath, dotted
from lemon_core.config.toml_text import literal_of, parse_path
from lemon_core.config.validate import unknown_key_message
from lemon_core.config.write import ConfigWriteError, Edit, edit_file


def set_in_file(context: CommandContext, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Set each path to its value, all or none, and return the lines that say so.

    Raises `UnknownKey` and `ConfigWriteError`.
    """
    contributed = Contributed.of(context.profile)
    paths = [_path(text) for text, _ in pairs]
    for path in paths:
        _refuse_unknown(contributed, path)
    spellings = [_spellings(value) for _, value in pairs]
    edits = _fitting(context, contributed, paths, spellings)
    file = context.paths.config_file
    told = [
        f"{dotted(edit.path)} = {HIDDEN if is_private(edit.path) else edit.literal}  ({file})"
        for edit in edits
    ]
    for path in paths:
        if is_private(path) and _can_name_a_secret(contributed, path):
            note(
                f"warning: {dotted(path)} stands in the file as it is: lemon secrets set keeps it "
                "encrypted, and a key ending in _secret names it"
            )
    _tell_shadowed(context, paths)
    return told


def unset_in_file(context: CommandContext, texts: Sequence[str]) -> list[str]:
    """Delete each path, all or none, and return the lines that say so."""
    paths = [_path(text) for text in texts]
    file = context.paths.config_file
    changed = edit_file(
        file, [Edit(path) for path in paths], contributed=Contributed.of(context.profile)
    )
    if not changed:
        return [f"{file}: nothing to delete"]
    return [f"{dotted(path)} is not set any more  ({file})" for path in paths]


def _can_name_a_secret(contributed: Contributed, path: KeyPath) -> bool:
    """Whether a key beside this one takes the name of a stored secret in its place."""
    try:
        _refuse_unknown(contributed, (*path[:-1], f"{path[-1]}_secret"))
    except UnknownKey:
        return False
    return True


def _path(text: str) -> KeyPath:
    try:
        return parse_path(text)
    except ValueError as exc:
        raise UnknownKey(str(exc)) from exc


def _refuse_unknown(contributed: Contributed, path: KeyPath) -> None:
    """Raise for a key that nothing reads: a typing error would be silent for ever."""
    data: dict[str, object] = {}
    inside: object = "value"
    for step in reversed(path[1:]):
        inside = [inside] if isinstance(step, int) else {step: inside}
    data[str(path[0])] = inside
    model, _ = contributed.used_by((data,))
    for key in keys.walk(data, model):
        if not key.known:
            message = unknown_key_message(key.path, key.suggestions).replace(", ignored", "")
            raise UnknownKey(f"{dotted(key.path)}: {message}")


def _spellings(value: str) -> list[str]:
    """The literals that `value` may be meant as, the likeliest first."""
    text = literal_of(value)
    try:
        parsed = tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        return [text]
    return [value, text] if len(parsed) == 1 and "\n" not in value and "#" not in value else [text]


def _fitting(
    context: CommandContext,
    contributed: Contributed,
    paths: Sequence[KeyPath],
    spellings: Sequence[Sequence[str]],
) -> list[Edit]:
    """Write the first reading of the values that the keys take; the first one's refusal counts."""
    refusal: ConfigWriteError | None = None
    for literals in product(*spellings):
        edits = [Edit(path, literal) for path, literal in zip(paths, literals, strict=True)]
        try:
            edit_file(context.paths.config_file, edits, contributed=contributed)
            return edits
        except ConfigWriteError as exc:
            refusal = refusal or exc
    assert refusal is not None  # there is always one reading at least
    raise refusal


def _tell_shadowed(context: CommandContext, paths: Sequence[KeyPath]) -> None:
    """Say which of the values do not count, because a higher layer sets them too."""
    origins = explain(inspected(context, context.cwd, stored=True).loaded)
    for path in paths:
        origin = origins.get(dotted(path))
        if origin is not None and any(it.layer == "global" for it in origin.shadowed):
            layer = origin.layer.replace("_", " ")
            note(f"{dotted(path)} does not count now: the {layer} sets it too")
