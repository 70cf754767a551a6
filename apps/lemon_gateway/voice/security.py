"""How a request proves that it is Twilio's.

The socket of a media stream carries no signature; its token is always asked for. With
`validate_webhook = false` programs of this machine may ask without a signature, and still need the
token: no switch opens both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lemon_gateway.twilio_signature import (
    Arrival,
    Fields,
    is_from_here,
    origin_of,
    rebuilt_url,
    refusal,
    url_under,
)

SECTION: Final = "gateway.voice"


@dataclass(frozen=True, slots=True)
class VoiceSecurity:
    """How a request proves that it is Twilio's; `public_url` None is rebuilt from each request."""

    auth_token: str = field(repr=False)
    public_url: str | None
    validate: bool

    @property
    def unprotected(self) -> str | None:
        """What to set before the endpoint may be public."""
        if not self.validate:
            return "set validate_webhook to true"
        return None if self.auth_token else "set twilio_auth_token (lemon voice secrets)"

    def base_url(self, arrival: Arrival) -> str | None:
        """How the service reaches this server; None when nothing says."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        origin = origin_of(arrival)
        return f"{origin.scheme}://{origin.host}" if origin else None

    def refusal(self, arrival: Arrival, fields: Fields) -> str | None:
        """Why a request does not count as Twilio's."""
        if not self.validate:
            # What is left is this machine: through a proxy anybody could get a token.
            return None if is_from_here(arrival) else "not_local"
        public = self.public_url
        url = rebuilt_url(arrival) if public is None else url_under(public, arrival)
        return refusal(self.auth_token, url, fields, arrival.headers)
