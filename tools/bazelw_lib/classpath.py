"""The Java class path of Debian's Bazel, moved into the folder it was unpacked to."""

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path


def manifest_class_path(jar: Path) -> list[str]:
    """Return the entries of a jar's `Class-Path`, relative to the jar's folder."""
    try:
        with zipfile.ZipFile(jar) as archive:
            manifest = archive.read("META-INF/MANIFEST.MF").decode("utf-8", errors="replace")
    except (KeyError, OSError, zipfile.BadZipFile):
        return []
    # Manifest lines are cut at 72 bytes; a leading space continues the line before.
    unfolded = manifest.replace("\r\n", "\n").replace("\n ", "")
    for line in unfolded.splitlines():
        if line.lower().startswith("class-path:"):
            return line.partition(":")[2].split()
    return []


def closure(
    jars: Iterable[Path],
    root: Path,
    class_path_of: Callable[[Path], list[str]] = manifest_class_path,
) -> list[Path]:
    """Return the jars in order, then every existing jar below `root` that their manifests name.

    Debian lists only direct jars (perfmark-api, without which Bazel's server cannot answer its
    client, is named in a manifest alone), because a JVM started by `java -jar` follows manifests.
    An absolute entry means the system's tree, which here is `root`.
    """
    ordered: dict[Path, None] = {}
    queue = list(jars)
    while queue:
        jar = queue.pop(0)
        if jar in ordered or not jar.is_file():
            continue
        ordered[jar] = None
        for entry in class_path_of(jar):
            named = root / entry.lstrip("/") if entry.startswith("/") else jar.parent / entry
            queue.append(Path(os.path.normpath(named)))
    return list(ordered)


def rewrite(list_file: Path, unpacked: Path, final: Path) -> None:
    """Rewrite Debian's list of jars (one absolute path per line) for the folder `final`.

    The jars are read below `unpacked`: the folder is renamed to `final` only at the end.
    """
    names = list_file.read_text(encoding="utf-8").split()
    jars = closure([unpacked / name.lstrip("/") for name in names], unpacked)
    moved = [final / jar.relative_to(unpacked) for jar in jars if jar.is_relative_to(unpacked)]
    list_file.write_text("".join(f"{jar}\n" for jar in moved), encoding="utf-8")
