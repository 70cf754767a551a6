"""Refusals of the router: definite answers, made before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping

from lemon_core.errors import LemonError


class Rejected(LemonError):
    """A request that does not become a run; `reason` is the stable code on the wire."""

    code = "rejected"

    def __init__(
        self, reason: str, message: str, detail: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = {"message": message, **(detail or {})}
