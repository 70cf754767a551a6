"""What goes over the wire, for whoever looks into a fault: sizes and ids in the log, and a file for
each request that a provider refused. Both are off unless the environment asks for them, and neither
holds a text of the conversation or a key.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio.to_thread

from lemon_ai.credentials import same_host
from lemon_ai.providers import PROVIDERS
from lemon_ai.redaction import (
    clean_answer,
    secrets_of,
    shape_of,
    texts_of,
    visible_headers,
    visible_url,
)
from lemon_ai.text import load_json
from lemon_ai.types import now_ms

log = logging.getLogger(__name__)

TRACE_VARIABLE: Final = "LEMON_AI_HTTP_TRACE"
DUMPS_VARIABLE: Final = "LEMON_AI_ERROR_DUMPS"
PREVIEW_BYTES: Final = 1_200
_ID_HEADERS: Final = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id")


@dataclass(slots=True)
class Exchange:
    """One request, and what was answered."""

    trace: HttpTrace
    url: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    started_ms: float
    status: int = 0

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the answer is there."""
        self.status = status
        if self.trace.is_logging:
            log.info(
                "http.answered",
                extra={
                    "url": visible_url(self.url),
                    "status": status,
                    "request_bytes": len(self.body),
                    "request_id": next((headers[n] for n in _ID_HEADERS if n in headers), None),
                    "duration_ms": round(self.trace.monotonic_ms() - self.started_ms),
                },
            )

    async def refused(self, headers: Mapping[str, str], body: bytes) -> None:
        """The body of an answer that is an error."""
        await anyio.to_thread.run_sync(self._refused, dict(headers), body)

    def _refused(self, headers: Mapping[str, str], body: bytes) -> None:
        answer = clean_answer(
            body,
            texts=texts_of(self.body),
            secrets=secrets_of(self.headers),
            limit=PREVIEW_BYTES,
        )
        if self.trace.is_logging:
            log.info(
                "http.refused",
                extra={"url": visible_url(self.url), "status": self.status, "body": answer},
            )
        if self.trace.dump_folder is not None and 400 <= self.status < 500:
            self._dump(self.trace.dump_folder, headers, answer)

    def _dump(self, folder: Path, headers: Mapping[str, str], answer: str) -> None:
        document = {
            "url": visible_url(self.url),
            "status": self.status,
            "request_headers": visible_headers(self.headers),
            "request": _shape(self.body),
            "response_headers": visible_headers(headers),
            "response": answer,
        }
        name = f"{_place(self.url)}-{self.status}-{self.trace.now_ms()}.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(folder / name, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2)
        except OSError as exc:  # a full disk must not change how a call ends
            log.warning("http.dump_failed", extra={"path": str(folder / name), "error": str(exc)})


class HttpTrace:
    """Which of both is on."""

    def __init__(
        self,
        *,
        is_logging: bool = False,
        dump_folder: Path | None = None,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.is_logging, self.dump_folder, self.now_ms = is_logging, dump_folder, now_ms

    @classmethod
    def of(cls, env: Mapping[str, str]) -> HttpTrace | None:
        """As the environment wants it; None when nothing is on."""
        is_logging = env.get(TRACE_VARIABLE) == "1"
        dumps = env.get(DUMPS_VARIABLE) == "1"
        if not (is_logging or dumps):
            return None
        home = Path(env["HOME"]) if env.get("HOME") else Path.home()
        folder = home / ".lemon" / "logs" / "http-errors"
        return cls(is_logging=is_logging, dump_folder=folder if dumps else None)

    def sent(self, url: str, body: bytes, headers: Mapping[str, str]) -> Exchange:
        """A request goes out."""
        return Exchange(self, url, body, headers, self.monotonic_ms())

    @staticmethod
    def monotonic_ms() -> float:
        """Milliseconds that never go back."""
        return time.monotonic_ns() / 1_000_000


def _shape(body: bytes) -> Any:
    try:
        return shape_of(load_json(body))
    except ValueError:
        return f"<{len(body)} bytes>"


def _place(url: str) -> str:
    """The provider that lives there, else the host."""
    row = next((row for row in PROVIDERS.values() if same_host(row.base_url, url)), None)
    return row.id if row is not None else urlsplit(url).hostname or "unknown"
