"""What can go wrong with the services that a call is made of."""

from __future__ import annotations

from typing import ClassVar, Literal

from lemon_gateway.errors import GatewayError

Reason = Literal[
    "missing_api_key",
    "missing_twilio_credentials",
    "unknown_provider",
    "api_error",
    "request_failed",
    "refused",
]


class ProviderFailed(GatewayError):
    """A service gave no usable answer; `code` is the reason, `status` the one of an `api_error`."""

    code: ClassVar[Reason] = "request_failed"

    def __init__(self, code: Reason, service: str, told: str, *, status: int | None = None) -> None:
        super().__init__(f"{service}: {told}")
        self.code = code  # type: ignore[misc]  # here the code is a fact of the instance
        self.service, self.status = service, status

    @classmethod
    def no_key(cls, service: str, name: str) -> ProviderFailed:
        """The key called `name` is nowhere."""
        told = f"{name} is not there: lemon voice secrets"
        return cls("missing_api_key", service, told)

    @classmethod
    def api_error(cls, service: str, status: int) -> ProviderFailed:
        """The service refused; its text may quote the request and is left out."""
        return cls("api_error", service, f"answered with status {status}", status=status)

    @classmethod
    def request_failed(cls, service: str, exc: BaseException) -> ProviderFailed:
        """No answer came."""
        return cls("request_failed", service, f"gave no answer ({type(exc).__name__})")
