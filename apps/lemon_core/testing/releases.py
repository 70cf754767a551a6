"""Releases for tests of updates: archives, a server that offers them, an installation."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import anyio
from aiohttp import web

from lemon_core.calver import CalVer
from lemon_core.paths import PathSettings
from lemon_core.update_layout import Installation
from lemon_core.update_manifest import Machine

MACHINE = Machine("linux-x86_64", "runtime_min", (2, 35))


def member(
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    link: str = "",
) -> tuple[tarfile.TarInfo, bytes]:
    """One member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(content)
    return info, content


def archive_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """The members as a .tar.gz."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return made.getvalue()


def release(version: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """A release whose program prints its version."""
    return [
        member("bin", kind=tarfile.DIRTYPE, mode=0o755),
        member("bin/lemon", f"#!/bin/sh\necho {version}\n".encode(), mode=0o755),
        member("bin/python3.11", b"ELF", mode=0o755),
        member("bin/python", kind=tarfile.SYMTYPE, link="python3.11"),
        member("lib/lemon_core/version.py", version.encode()),
    ]


@dataclass
class ReleaseServer:
    """What a release server answers, by path; counts the requests."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    silent: bool = False
    stopping: anyio.Event = field(default_factory=anyio.Event)
    requests: list[str] = field(default_factory=list)

    @property
    def manifest_url(self) -> str:
        """Where an update finds what `offer` put at the top."""
        return f"{self.url}/manifest.json"

    def offer(
        self,
        version: str,
        archive: bytes | None = None,
        *,
        manifest: dict[str, object] | None = None,
        folder: str = "",
        **artifact: object,
    ) -> bytes:
        """Offer a release; `artifact` and `manifest` replace fields, None removes one.

        `folder` (`stable/latest/`) is where the two files are.
        """
        content = archive_of(release(version)) if archive is None else archive
        row: dict[str, object] = {
            "file": f"lemon-{version}.tar.gz",
            "profile": "min",
            "platform": "linux-x86_64",
            "os": "linux",
            "arch": "x86_64",
            "sha256": sha256(content).hexdigest(),
            "size": len(content),
            "glibc_min": "2.28",
            **artifact,
        }
        whole: dict[str, object] = {
            "schema": 2,
            "version": version,
            "channel": "stable",
            "commit": "abc",
            "built_at": "2026-11-30T00:00:00Z",
            "python": "3.11.9",
            "artifacts": [{key: value for key, value in row.items() if value is not None}],
            **(manifest or {}),
        }
        self.files[f"{folder}manifest.json"] = json.dumps(whole).encode()
        self.files[f"{folder}lemon-{version}.tar.gz"] = content
        return content

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """What the server says to one request."""
        name = request.match_info["name"]
        self.requests.append(name)
        if self.silent:
            await self.stopping.wait()
        if name in self.redirects:
            raise web.HTTPFound(self.redirects[name])
        if name not in self.files:
            raise web.HTTPNotFound
        content = self.files[name]
        if name not in self.cut:
            return web.Response(body=content)
        response = web.StreamResponse(headers={"Content-Length": str(len(content))})
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
        assert request.transport is not None
        request.transport.close()
        return response


@asynccontextmanager
async def release_server() -> AsyncIterator[ReleaseServer]:
    """A server on a free loopback port."""
    server = ReleaseServer()
    app = web.Application()
    app.router.add_get("/{name:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        yield server
    finally:
        server.stopping.set()
        await runner.cleanup()


def install(paths: PathSettings, *versions: str, current: str) -> Path:
    """Put releases into a home; returns a file of the current one, as its program has."""
    for version in versions:
        folder = paths.versions_dir / version
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "lemon").write_text(version)
        (folder / "bin" / "lemon").chmod(0o755)
        (folder / "lib").mkdir()
        (folder / "lib" / "update.py").write_text("")
    (paths.versions_dir / "current").symlink_to(current)
    return paths.versions_dir / "current" / "lib" / "update.py"


def installation(paths: PathSettings, *versions: str, current: str) -> Installation:
    """The same as an `Installation`."""
    return Installation.find(paths, install(paths, *versions, current=current))


def seen(paths: PathSettings) -> dict[str, object]:
    """All of `versions` and of the download folder, in one value to compare."""
    names = sorted(path.name for path in paths.versions_dir.iterdir() if path.name != ".lock")
    downloads = paths.download_dir
    return {
        "current": str(CalVer.parse((paths.versions_dir / "current").readlink().name)),
        "versions": names,
        "downloads": sorted(downloads.iterdir()) if downloads.is_dir() else [],
    }
