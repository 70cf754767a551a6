"""The base of every typed event payload."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Payload(BaseModel):
    """Base of all payloads: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RarePayload(Payload):
    """A payload that most processes never see: its validator is built at first use."""

    model_config = ConfigDict(defer_build=True)
