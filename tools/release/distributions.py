"""What an installed package says of itself: its name, what it needs, and its licences."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

UNKNOWN: Final = "NOASSERTION"
"""SPDX's word for a licence that is not told in a form that a program can trust."""

_LICENCE_FILE: Final = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MANYLINUX: Final = re.compile(r"manylinux_(\d+)_(\d+)_")
_LEGACY_MANYLINUX: Final = {
    "manylinux1": (2, 5),
    "manylinux2010": (2, 12),
    "manylinux2014": (2, 17),
}
# What packages write where SPDX has an identifier.
_IDENTIFIERS: Final = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "isc license": "ISC",
    "license :: osi approved :: mit license": "MIT",
    "mit": "MIT",
    "mit license": "MIT",
    "mpl-2.0": "MPL-2.0",
    "psf-2.0": "PSF-2.0",
    "unlicense or mit": "Unlicense OR MIT",
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """One package; `licence` is an SPDX expression, `declared` what the package wrote."""

    name: str
    version: str
    licence: str
    declared: str
    requires: tuple[str, ...] = ()
    licence_files: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """For `from_json` in another program."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Distribution:
        """What `as_json` said."""
        lists = {name: tuple(row[name]) for name in ("requires", "licence_files")}
        return cls(**{**row, **lists})


def normalised(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_distribution(site: Path) -> tuple[importlib.metadata.PathDistribution, Path]:
    """The one package in the folder, and where it keeps what it says of itself.

    Raises ValueError when there is none, or more than one.
    """
    folders = sorted(site.glob("*.dist-info"))
    if len(folders) != 1:
        raise ValueError(f"{site} holds {len(folders)} packages, not one")
    return importlib.metadata.PathDistribution(folders[0]), folders[0]


def declared_licence(found: importlib.metadata.Distribution) -> tuple[str, str]:
    """The licence as an SPDX expression, and in the package's own words."""
    metadata = found.metadata
    for expression in metadata.get_all("License-Expression") or ():
        return expression, expression
    told = list(metadata.get_all("License") or ())
    told += [text for text in metadata.get_all("Classifier") or () if text.startswith("License ::")]
    for text in told:
        if known := _IDENTIFIERS.get(text.strip().lower()):
            return known, text.strip()
    # Some put the whole licence there.
    return UNKNOWN, next((text.strip().splitlines()[0][:100] for text in told if text.strip()), "")


def requirements(found: importlib.metadata.Distribution) -> tuple[str, ...]:
    """The normalised names of what the package may need, without its extras."""
    names = set()
    for text in found.requires or ():
        match = _REQUIREMENT.match(text)
        if match and "extra ==" not in text:
            names.add(normalised(match[0]))
    return tuple(sorted(names))


def licence_files(site: Path, info: Path) -> Iterator[tuple[str, Path]]:
    """The licence files of a package, and a short name for each."""
    for path in sorted(site.rglob("*")):
        if _LICENCE_FILE.match(path.name) and path.suffix not in (".py", ".pyc") and path.is_file():
            inside = path.is_relative_to(info)
            short = path.relative_to(info if inside else site).as_posix()
            yield short.removeprefix("licenses/"), path


def glibc_of(found: importlib.metadata.Distribution) -> tuple[int, int]:
    """The oldest C library that the package runs with; (0, 0) when it does not care.

    A file may carry several tags; the least of them is what it needs. Source: PEP 600.
    """
    needed = []
    for line in (found.read_text("WHEEL") or "").splitlines():
        if line.startswith("Tag:") and "linux" in line:
            needed += [(int(a), int(b)) for a, b in _MANYLINUX.findall(line)]
            needed += [have for tag, have in _LEGACY_MANYLINUX.items() if f"{tag}_" in line]
    return min(needed, default=(0, 0))
