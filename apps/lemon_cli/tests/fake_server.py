"""A component that answers `RouterService.GetHealth`, and nothing else of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from lemon_core.runtime import Runtime


async def _healthy(request: bytes, context: object) -> bytes:
    """An empty message is a report with every field unset."""
    return b""


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    if runtime.environ.get("FAKE_SERVER") == "fail":
        raise OSError("no luck")
    if not runtime.serve or runtime.environ.get("FAKE_SERVER") == "silent":
        yield
        return
    path = runtime.lock.claim_socket(runtime.paths.router_socket)
    server = grpc.aio.server()
    methods: dict[str, Any] = {"GetHealth": grpc.unary_unary_rpc_method_handler(_healthy)}
    handler = grpc.method_handlers_generic_handler("lemon.router.v1.RouterService", methods)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    runtime.listening["router"] = f"unix:{path}"
    try:
        yield
    finally:
        await server.stop(0)
