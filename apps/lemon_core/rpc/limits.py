"""Limits and intervals that servers and clients share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEEPALIVE_TIME_MS: Final = 20_000
KEEPALIVE_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Limits of a server (`[gateway.rpc]`, `[router.rpc]`)."""

    max_message_bytes: int = 16 * 1024 * 1024
    max_concurrent_streams: int = 256
    heartbeat_ms: int = 15_000
