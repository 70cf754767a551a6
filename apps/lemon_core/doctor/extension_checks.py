"""Extensions as far as their manifests tell: their code is neither imported nor read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

import anyio

from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding, passed, skipped, warned
from lemon_core.extensions import ExtensionManifest, ManifestInvalid, manifest_file, read_manifest

_MAX_EXTENSIONS: Final = 200
_SHOWN: Final = 5

Found = list[tuple[Path, ExtensionManifest | ManifestInvalid]]


async def manifests(context: DoctorContext) -> Finding:
    """Whether every extension that lies where Lemon looks says clearly what it is."""
    found = await anyio.to_thread.run_sync(_read, context)
    if not found:
        return skipped("there is no extension")
    faults = [str(result) for _, result in found if isinstance(result, ManifestInvalid)]
    if faults:
        return warned("\n".join(faults[:_SHOWN]), "lemon extension validate PATH tells more")
    return passed(f"manifests of extensions that can be read: {len(found)}")


async def area(context: DoctorContext) -> Mapping[str, object]:
    """How many extensions there are, and of what kind."""
    found = await anyio.to_thread.run_sync(_read, context)
    valid = [result for _, result in found if isinstance(result, ExtensionManifest)]
    hosts = Counter(m.host.type if m.host is not None else "python" for m in valid)
    return {
        "enabled": context.config.runtime.extensions.enabled,
        "valid": len(valid),
        "invalid": len(found) - len(valid),
        "hosts": dict(sorted(hosts.items())),
        "providers": sorted({entry.type for m in valid for entry in m.providers}),
    }


def _read(context: DoctorContext) -> Found:
    found: Found = []
    for path in islice(dict.fromkeys(_manifest_files(context)), _MAX_EXTENSIONS):
        try:
            found.append((path, read_manifest(path)))
        except ManifestInvalid as exc:
            found.append((path, exc))
    return found


def _manifest_files(context: DoctorContext) -> Iterator[Path]:
    """The manifests in the usual folders and in those that are configured."""
    folders = [
        context.paths.agent_dir(context.environ) / "extensions",
        context.project_dir / ".lemon" / "extensions",
    ]
    configured = context.config.runtime.extension_paths
    folders += [context.project_dir / context.paths.expand(text) for text in configured]
    for folder in folders:
        if not folder.is_dir():
            continue
        own = manifest_file(folder)
        if own is not None:
            yield own
            continue
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and (file := manifest_file(inner)) is not None:
                yield file
