"""Does the provider take the credential? One small request, which costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import anyio

from lemon_ai.transport import Transport, TransportFailure
from lemon_cli.provider_view import models_url, provider_view
from lemon_core.commands import CommandContext

TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Checked:
    """How a check ended; `detail` holds no credential."""

    status: Literal["passed", "failed", "not_available"]
    detail: str


async def live_check(context: CommandContext, provider: str) -> Checked:
    """Ask the provider for its models with the credential that a run would use.

    Only those can be asked that list their models in the manner of OpenAI.
    """
    async with provider_view(context) as view:
        access = view.plain.get(provider)
        found = await view.usable(provider)
    if access is None or not found.is_usable:
        return Checked("failed", f"{provider}: {found.reason or 'no credential'}")
    url = models_url(access)
    if url is None:
        return Checked("not_available", f"live check not available for {provider}")
    headers = {"accept": "application/json"}
    if found.api_key:
        headers["authorization"] = f"Bearer {found.api_key}"
    transport = Transport(env=context.environ)
    try:
        with anyio.fail_after(TIMEOUT_S):
            status, document = await transport.get_json(url, headers)
    except TimeoutError:
        return Checked("failed", f"{provider} gave no answer within {TIMEOUT_S:.0f} s")
    except TransportFailure as exc:
        return Checked("failed", f"{provider} cannot be reached: {exc.error.message}")
    finally:
        await transport.aclose()
    if status in (401, 403):
        return Checked("failed", f"{provider} refused the credential (HTTP {status})")
    if status != 200:
        return Checked("failed", f"{provider} answered HTTP {status}")
    rows = document.get("data") if isinstance(document, dict) else None
    many = ""
    if isinstance(rows, list):
        many = f" and lists {len(rows)} {'model' if len(rows) == 1 else 'models'}"
    return Checked("passed", f"{provider} took the credential{many}")
