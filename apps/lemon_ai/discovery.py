"""Asking a server which models it has."""

from __future__ import annotations

import anyio

from lemon_ai.errors import AIError
from lemon_ai.transport import Transport, TransportFailure, without_userinfo

DISCOVERY_TIMEOUT_S = 4.0


class ModelListError(AIError):
    """The server's list of models could not be read; name a model instead."""

    code = "model_list_failed"

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"no model is named and {without_userinfo(url)} gave none: {problem}")


async def first_model_id(transport: Transport, base_url: str, api_key: str | None) -> str:
    """The first id of `GET {base}/models`. Raises ModelListError."""
    url = f"{base_url.rstrip('/')}/models"
    headers = {"accept": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        with anyio.fail_after(DISCOVERY_TIMEOUT_S):
            status, document = await transport.get_json(url, headers)
    except TimeoutError as exc:
        raise ModelListError(url, "no answer in time") from exc
    except TransportFailure as exc:
        raise ModelListError(url, exc.error.message) from exc
    if status != 200:
        raise ModelListError(url, f"HTTP {status}")
    rows = document.get("data") if isinstance(document, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"]:
            return str(row["id"])
    raise ModelListError(url, "the answer lists no model")
