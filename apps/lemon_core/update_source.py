"""Fetching a manifest and an archive over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

import anyio.to_thread

from lemon_core.private_files import open_new
from lemon_core.update_errors import ArtifactRefused, UpdateUnavailable
from lemon_core.update_manifest import Artifact, ReleaseManifest, parse_manifest

if TYPE_CHECKING:
    import aiohttp

MANIFEST_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
MANIFEST_MAX_BYTES: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 18

OnBytes = Callable[[int, int], None]
"""Called with how many bytes are there and how many it will be."""

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


async def fetch_manifest(url: str, *, timeout_s: float = MANIFEST_TIMEOUT_S) -> ReleaseManifest:
    """The manifest at `url`, within ten seconds; raises `UpdateUnavailable`."""
    require_safe_url(url)
    async with _response(url, total_s=timeout_s) as response:
        content = await response.content.read(MANIFEST_MAX_BYTES + 1)
        while len(content) <= MANIFEST_MAX_BYTES and (
            more := await response.content.read(MANIFEST_MAX_BYTES)
        ):
            content += more
    if len(content) > MANIFEST_MAX_BYTES:
        raise UpdateUnavailable(f"{url} is larger than a manifest may be")
    return parse_manifest(content, url)


async def download(manifest_url: str, artifact: Artifact, into: Path, on_bytes: OnBytes) -> None:
    """Write the archive, which lies beside the manifest, to the new file `into`.

    It is complete and has its announced checksum, or `ArtifactRefused` or `UpdateUnavailable` is
    raised; the caller removes the file then.
    """
    url = urljoin(manifest_url, artifact.file)
    digest, size = sha256(), 0
    with open_new(into) as file:
        async with _response(url, total_s=None) as response:
            on_bytes(0, artifact.size)
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                size += len(chunk)
                if size > artifact.size:
                    raise ArtifactRefused(f"{url} is larger than its {artifact.size} bytes")
                digest.update(chunk)
                await anyio.to_thread.run_sync(file.write, chunk)
                on_bytes(size, artifact.size)
    if size != artifact.size:
        raise ArtifactRefused(f"{url} ended after {size} of {artifact.size} bytes")
    if digest.hexdigest() != artifact.sha256:
        raise ArtifactRefused(f"{url} does not have the checksum that its manifest names")


def require_safe_url(url: str) -> None:
    """Raise `UpdateUnavailable` for a URL that others could answer on the way.

    The checksum comes the same way as the archive, so the way has to be safe.
    """
    parts = urlsplit(url)
    loopback = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (loopback or parts.scheme == "https") or not parts.hostname:
        raise UpdateUnavailable(f"{url} is no https address")


@asynccontextmanager
async def _response(url: str, *, total_s: float | None) -> AsyncIterator[aiohttp.ClientResponse]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=total_s, sock_connect=MANIFEST_TIMEOUT_S, sock_read=READ_TIMEOUT_S
    )
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url, headers={"Accept-Encoding": "identity"}) as response,
        ):
            for step in (*response.history, response):
                require_safe_url(str(step.url))
            if response.status != 200:
                raise UpdateUnavailable(f"{url} answered {response.status}")
            yield response
    except TimeoutError as exc:
        raise UpdateUnavailable(f"{url} did not answer in time") from exc
    except aiohttp.ClientError as exc:
        raise UpdateUnavailable(f"{url} cannot be fetched: {exc}") from exc
