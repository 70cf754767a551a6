"""Recordings of calls: ordered when a call begins, and fetched when the service has them.

What names the file is a stranger's: the number of whoever called, and ids from a form. Only letters
and digits of it get into a name. The account's credentials go to hosts of the service alone.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

import anyio

from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.private_files import open_new
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.keys import VoiceKeys
from lemon_gateway.voice.providers import Endpoints, asked

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

ORDER_TIMEOUT_MS: Final = 10_000
FETCH_TIMEOUT_MS: Final = 30_000
MAX_BYTES: Final = 256 * 1024 * 1024
MAX_REDIRECTS: Final = 3
DOMAIN: Final = "twilio.com"
UNKNOWN_CALLER: Final = "unknown"
SERVICE: Final = "twilio"

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_+-]")
_HOST: Final = re.compile(r"(?:[a-z0-9-]+\.)*twilio\.com")
_ID: Final = re.compile(r"[A-Za-z0-9]{1,64}")
_CALLER_LENGTH: Final = 30
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

log = get_logger("lemon_gateway.voice.recordings")


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished recording that may be fetched."""

    call_sid: str
    url: str
    duration_s: str

    @classmethod
    def of_form(cls, form: Mapping[str, str]) -> Recording:
        """What the service's message names; raises `ProviderFailed` `refused` for anything else."""
        found = cls(
            form.get("CallSid", ""), form.get("RecordingUrl", ""), form.get("RecordingDuration", "")
        )
        for name, value in (("CallSid", found.call_sid), ("duration", found.duration_s)):
            if not _ID.fullmatch(value):
                raise ProviderFailed("refused", SERVICE, f"{name} of the recording is no id")
        _check(found.url)
        return found


@dataclass(frozen=True, slots=True)
class _Account:
    """Whose recordings these are, as the service wants to be told with each request."""

    sid: str
    token: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        basic = base64.b64encode(f"{self.sid}:{self.token}".encode()).decode("ascii")
        return {"authorization": f"Basic {basic}"}


def file_name(recording: Recording, caller: str) -> str:
    """A name of letters, digits, `_`, `+` and `-`, whatever the caller's number looks like."""
    number = _NOT_IN_NAMES.sub("", caller)[:_CALLER_LENGTH] or UNKNOWN_CALLER
    return f"{recording.call_sid}_{number}_{recording.duration_s}s.wav"


class Recordings:
    """Orders recordings of calls and keeps them under `folder`, a folder for each day (UTC)."""

    def __init__(
        self,
        http: ClientSession,
        keys: VoiceKeys,
        clock: Clock,
        endpoints: Endpoints,
        folder: Path,
    ) -> None:
        self._http, self._keys, self._clock, self._folder = http, keys, clock, folder
        self._base = endpoints.twilio.rstrip("/")

    async def order(self, call_sid: str, callback_url: str) -> None:
        """Have a call recorded from now on, both sides apart; raises `ProviderFailed`."""
        account = await self._account()
        if not _ID.fullmatch(call_sid):
            raise ProviderFailed("refused", SERVICE, "the call has no id of the service")
        url = f"{self._base}/2010-04-01/Accounts/{account.sid}/Calls/{call_sid}/Recordings.json"

        async def post() -> None:
            form = {
                "RecordingChannels": "dual",
                "RecordingTrack": "both",
                "Trim": "do-not-trim",
                "RecordingStatusCallback": callback_url,
            }
            async with self._http.post(
                url, data=form, headers=account.headers, allow_redirects=False
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise ProviderFailed.api_error(SERVICE, answer.status)

        await asked(SERVICE, self._clock, ORDER_TIMEOUT_MS, post)

    async def fetch(self, recording: Recording, caller: str) -> Path:
        """The file that now holds the recording.

        Raises `ProviderFailed`, and OSError when the folder cannot be made.
        """
        account = await self._account()
        day = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).strftime("%Y-%m-%d")
        path = self._folder / day / file_name(recording, caller)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        await asked(
            SERVICE,
            self._clock,
            FETCH_TIMEOUT_MS,
            lambda: self._download(f"{recording.url}.wav", account, path),
        )
        log.info("voice.recording_kept", call_sid=recording.call_sid, folder=str(path.parent))
        return path

    async def _download(self, url: str, account: _Account, path: Path) -> None:
        for _ in range(MAX_REDIRECTS + 1):
            _check(url)
            async with self._http.get(
                url, headers=account.headers, allow_redirects=False
            ) as answer:
                if answer.status in _REDIRECTS:
                    url = urljoin(url, answer.headers.get("location", ""))
                    continue
                if answer.status != 200:
                    raise ProviderFailed.api_error(SERVICE, answer.status)
                await _write(answer, path)
                return
        raise ProviderFailed("refused", SERVICE, "the recording is passed from address to address")

    async def _account(self) -> _Account:
        sid = await self._keys.service("twilio_account_sid")
        token = await self._keys.service("twilio_auth_token")
        if sid is None or token is None or not _ID.fullmatch(sid):
            told = "account sid and auth token are not both there: lemon voice secrets"
            raise ProviderFailed("missing_twilio_credentials", SERVICE, told)
        return _Account(sid, token)


async def _write(answer: ClientResponse, path: Path) -> None:
    """The body of `answer` as the file `path`, whole or not at all."""
    # The service may tell of a recording twice: each of the two writes has a file of its own.
    part = path.with_name(f"{path.stem}.{token_hex(4)}.part")
    size = 0
    try:
        async with anyio.wrap_file(open_new(part)) as file:
            async for piece in answer.content.iter_chunked(64 * 1024):
                size += len(piece)
                if size > MAX_BYTES:
                    raise ProviderFailed("refused", SERVICE, f"a recording over {MAX_BYTES} bytes")
                await file.write(piece)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _check(url: str) -> None:
    """Raises `ProviderFailed` unless `url` leads by https to a host of the service."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        plain = parts.port in (None, 443) and parts.username is None and parts.password is None
    except ValueError:
        host, plain = "", False
    if not (plain and parts.scheme == "https" and _HOST.fullmatch(host)):
        told = f"the recording is at no https host of {DOMAIN}"
        raise ProviderFailed("refused", SERVICE, told)
