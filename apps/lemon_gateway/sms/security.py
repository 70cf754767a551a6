"""How a delivery proves that it is Twilio's, and what is left when that is switched off."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from lemon_gateway.twilio_signature import (
    Arrival,
    Fields,
    Refusal,
    is_from_here,
    rebuilt_url,
    refusal,
)

SECTION: Final = "gateway.sms"
# The usual name of the stored secret and of the variable.
TOKEN_NAME: Final = "TWILIO_AUTH_TOKEN"


@dataclass(frozen=True, slots=True)
class SmsSecurity:
    """How a delivery proves that it is Twilio's; `url` None is rebuilt from each request."""

    auth_token: str = field(repr=False)
    url: str | None
    validate: bool

    def refusal_of(self, arrival: Arrival, fields: Fields) -> Refusal | Literal["not_local"] | None:
        """Why the delivery is refused, or None.

        Without signatures this machine alone may deliver: there is no other protection that
        switching them off could leave, and a proxy would let everybody in.
        """
        if self.validate:
            url = self.url or rebuilt_url(arrival)
            return refusal(self.auth_token, url, fields, arrival.headers)
        return None if is_from_here(arrival) else "not_local"

    @property
    def unprotected(self) -> str | None:
        """What to set before the endpoint may be public."""
        if not self.validate:
            return "set validate_webhook to true"
        return None if self.auth_token else f"set auth_token or {TOKEN_NAME}"

    @property
    def warning(self) -> str | None:
        """What the person who starts the server should know."""
        if not self.validate:
            return (
                "gateway.sms.validate_webhook is off: this machine alone may deliver, and no proxy"
            )
        if not self.auth_token:
            return f"gateway.sms refuses every message until auth_token or {TOKEN_NAME} is set"
        return None
