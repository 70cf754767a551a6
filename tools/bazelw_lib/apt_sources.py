"""Reads the machine's own apt sources and turns one into a source for another suite.

The mirror and the key are the machine's; nothing here knows a host name.
"""

import platform
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_FALSE = {"no", "false", "without", "off", "disable", "0"}
# The options of a one-line entry that still matter for another suite of the same archive.
_OPTION_FIELDS = {"signed-by": "Signed-By", "trusted": "Trusted"}


@dataclass(frozen=True, slots=True)
class AptSource:
    """One archive: where it is, which suites the machine takes from it, and whose key signs it."""

    uris: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)

    def for_suite(self, suite: str) -> str:
        """Return a deb822 stanza for another suite of this archive."""
        lines = ["Types: deb", f"URIs: {self.uris}", f"Suites: {suite}", "Components: main"]
        lines += [f"{name}: {value}" for name, value in sorted(self.options.items())]
        return "\n".join(lines) + "\n"


def parse_deb822(text: str) -> list[AptSource]:
    """Parse a `.sources` file; disabled and source-only stanzas are left out."""
    sources = []
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "").split():
            continue
        if stanza.get("enabled", "yes").lower() in _FALSE:
            continue
        sources.append(
            AptSource(
                uris=stanza.get("uris", ""),
                suites=tuple(stanza.get("suites", "").split()),
                components=tuple(stanza.get("components", "").split()),
                options={
                    name: stanza[key] for key, name in _OPTION_FIELDS.items() if key in stanza
                },
            )
        )
    return sources


def _stanzas(text: str) -> list[dict[str, str]]:
    stanzas: list[dict[str, str]] = [{}]
    key = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
        elif line[0] in " \t":
            # A continuation keeps its indentation: a key may stand in the file itself.
            if key in stanzas[-1]:
                stanzas[-1][key] += "\n" + line
        else:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            stanzas[-1][key] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def parse_one_line(text: str) -> list[AptSource]:
    """Parse a `.list` file (`deb [options] uri suite component…`)."""
    sources = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if not line.startswith(("deb ", "deb\t")):
            continue
        rest = line[3:].strip()
        options: dict[str, str] = {}
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            for word in shlex.split(inside):
                name, _, value = word.partition("=")
                if name.lower() in _OPTION_FIELDS:
                    options[_OPTION_FIELDS[name.lower()]] = value
        words = rest.split()
        if len(words) >= 2:
            sources.append(AptSource(words[0], (words[1],), tuple(words[2:]), options))
    return sources


def read_machine_sources(etc_apt: Path) -> list[AptSource]:
    """Read every source that apt on this machine uses."""
    files = [etc_apt / "sources.list"]
    parts = etc_apt / "sources.list.d"
    if parts.is_dir():
        files += sorted(parts.iterdir())
    sources: list[AptSource] = []
    for file in files:
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.suffix == ".sources":
            sources += parse_deb822(text)
        elif file.suffix == ".list":
            sources += parse_one_line(text)
    return sources


def release_codename() -> str:
    """Return the machine's Debian release, for example `trixie`; empty when it does not say."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def machine_archives(etc_apt: Path = Path("/etc/apt")) -> list[AptSource]:
    """Return this machine's sources that may be Debian's main archive, the likeliest first."""
    return archive_candidates(read_machine_sources(etc_apt), release_codename())


def archive_candidates(sources: Iterable[AptSource], codename: str) -> list[AptSource]:
    """Return the sources that may be Debian's main archive, the likeliest first.

    Debian's own archive is the one that serves the release itself (a suite without `-updates` or
    `-security`) from the component `main`. Others may look alike, so the caller tries each.
    """
    plain = [
        source
        for source in sources
        if "main" in source.components and any("-" not in suite for suite in source.suites)
    ]
    # sorted() is stable: within a group the order of the machine's files stays.
    ranked = sorted(plain, key=lambda source: codename not in source.suites)
    unique: list[AptSource] = []
    for source in ranked:
        if all(source.uris != seen.uris for seen in unique):
            unique.append(source)
    return unique
