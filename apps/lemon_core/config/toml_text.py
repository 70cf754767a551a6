"""How TOML spells values, keys and paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, time

from lemon_core.config.source import KeyPath, parse_dotted


def literal_of(value: object) -> str:
    """`value` as TOML writes it; raises TypeError for what TOML has not."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _quoted(value)
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case Mapping():
            pairs = [f"{_key(str(name))} = {literal_of(inner)}" for name, inner in value.items()]
            return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
        case list() | tuple():
            return f"[{', '.join(literal_of(inner) for inner in value)}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def parse_path(text: str) -> KeyPath:
    """The path that `text` spells, indexes included, as `dotted` does; raises ValueError."""
    try:
        return parse_dotted(text)
    except ValueError:
        first, *rest = re.split(r"\[(\d+)\]\.?", text)
        if not rest:
            raise
        path: list[str | int] = list(parse_dotted(first))
        for index, names in zip(rest[::2], rest[1::2], strict=True):
            path += [int(index), *(parse_dotted(names) if names else ())]
        return tuple(path)


def keys_text(path: KeyPath) -> str:
    """`path` as the keys of a header or an assignment; indexes are not for TOML to say."""
    return ".".join(_key(step) for step in path if isinstance(step, str))


def line_end(text: str) -> str:
    """The line end that `text` uses."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's, but for one character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
