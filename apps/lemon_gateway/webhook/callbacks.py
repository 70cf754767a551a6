"""Answers that go to an address of the sender: judged when it is given, and again when asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import anyio
from yarl import URL

from lemon_core.address_guard import AddressGuard, AddressRefused, Lookup, guarded_connector
from lemon_core.clock import Clock
from lemon_core.logs import get_logger
from lemon_core.util import capped_backoff
from lemon_core.version import __version__
from lemon_gateway.webhook.settings import Callbacks

ATTEMPT_MS: Final = 10_000
LOOKUP_MS: Final = 5_000

log = get_logger("lemon_gateway.webhook")


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of one attempt: the status that came back, or why there is none."""

    http_status: int | None = None
    error: str | None = None

    @property
    def is_sent(self) -> bool:
        """True for 2xx."""
        return self.http_status is not None and 200 <= self.http_status < 300

    def as_dict(self) -> dict[str, object]:
        """As the answer to a request that waited shows it."""
        if self.is_sent:
            return {"status": "sent", "http_status": self.http_status}
        return {"status": "failed", "error": self.error or f"http status {self.http_status}"}


class CallbackSender:
    """Sends callbacks; `lookup` resolves names."""

    def __init__(self, clock: Clock, lookup: Lookup) -> None:
        self._clock, self._lookup = clock, lookup

    async def refusal(self, url: str, rules: Callbacks) -> str | None:
        """Why `url` may not be called, None when it may: every address of its name is judged.

        The words do not repeat the address, which may hold a secret.
        """
        guard = self._guard(rules)
        try:
            host = guard.check_url(url)
            with anyio.fail_after(LOOKUP_MS / 1000):
                found = await guard.addresses(host, urlsplit(url).port or 0)
        except TimeoutError:
            return "its host was not resolved in time"
        except (AddressRefused, OSError) as exc:
            return str(exc)
        return None if found else "its host leads to no address"

    async def send(self, url: str, rules: Callbacks, body: Mapping[str, object]) -> Delivered:
        """One attempt, to addresses that are judged as it connects; redirects are not followed."""
        guard = self._guard(rules)
        try:
            guard.check_url(url)
            with anyio.fail_after(ATTEMPT_MS / 1000):
                async with (
                    # No proxy of the environment: it would do the resolving.
                    aiohttp.ClientSession(
                        connector=guarded_connector(guard),
                        cookie_jar=aiohttp.DummyCookieJar(),
                        trust_env=False,
                        headers={"user-agent": f"Lemon/{__version__}"},
                    ) as session,
                    session.post(URL(url), json=body, allow_redirects=False) as answer,
                ):
                    return Delivered(answer.status)
        except TimeoutError:
            return Delivered(error=f"no answer within {ATTEMPT_MS} ms")
        except AddressRefused as exc:
            return Delivered(error=str(exc))
        except OSError as exc:  # where it could not connect to, which is host and port
            return Delivered(error=f"{type(exc).__name__}: {exc}"[:300])
        except (aiohttp.ClientError, ValueError) as exc:  # their texts quote the whole address
            return Delivered(error=type(exc).__name__)

    async def send_until_taken(
        self, url: str, rules: Callbacks, body: Mapping[str, object]
    ) -> Delivered:
        """Attempts with growing pauses until one is taken; the last one when none is."""
        outcome = Delivered(error="not attempted")
        for attempt in range(max(rules.max_attempts, 1)):
            if attempt:
                pause = capped_backoff(rules.backoff_ms, attempt - 1, rules.backoff_max_ms)
                await self._clock.sleep(pause)
            outcome = await self.send(url, rules, body)
            if outcome.is_sent:
                return outcome
            log.warning(
                "webhook.callback_failed",
                run_id=body.get("run_id"),
                attempt=attempt + 1,
                **outcome.as_dict(),
            )
        return outcome

    def _guard(self, rules: Callbacks) -> AddressGuard:
        return AddressGuard(self._lookup, allow_private=rules.may_be_private)
