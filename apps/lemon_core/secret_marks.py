"""The mark that stands for a secret's value in text that a model reads.

It says what it is and which secret it stands for, so that nobody takes it for the value: whoever is
about to write a text somewhere can find it and refuse. A row of stars could not be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

# A value that is shorter is a word like others, and would be masked where it means nothing.
MIN_VALUE_CHARS: Final = 12
_ODD: Final = re.compile(r"[\s\u27e6\u27e7]")
_MARK: Final = re.compile(r"\u27e6secret ([^\s\u27e6\u27e7]{1,256})\u27e7")


def mark(name: str) -> str:
    """What stands for the value of the secret `name`."""
    return f"\u27e6secret {_ODD.sub('_', name)[:256] or '_'}\u27e7"


def marked_names(text: str) -> list[str]:
    """The secrets whose marks stand in `text`, each once, in order."""
    if "\u27e6secret " not in text:
        return []
    return list(dict.fromkeys(_MARK.findall(text)))


class SecretMarks:
    """Replaces values by their marks; immutable. The longest value counts first."""

    def __init__(self, values: Mapping[str, str]) -> None:
        usable = {value.strip(): name for name, value in values.items()}
        pairs = sorted(usable.items(), key=lambda pair: -len(pair[0]))
        self._marks = [(v, mark(name)) for v, name in pairs if len(v) >= MIN_VALUE_CHARS]

    def __bool__(self) -> bool:
        return bool(self._marks)

    def masked(self, text: str) -> str:
        """`text` without any of the values."""
        for value, its_mark in self._marks:
            if value in text:
                text = text.replace(value, its_mark)
        return text

    def masked_value(self, value: object) -> object:
        """The same for every text in mappings and sequences; the object itself without any."""
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, Mapping):
            changed = {key: self.masked_value(item) for key, item in value.items()}
            return changed if _differs(changed.values(), value.values()) else value
        if isinstance(value, list | tuple):
            items = [self.masked_value(item) for item in value]
            return type(value)(items) if _differs(items, value) else value
        return value


def _differs(one: Iterable[object], other: Iterable[object]) -> bool:
    return any(a is not b for a, b in zip(one, other, strict=True))
