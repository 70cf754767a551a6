"""How the router reads its section."""

from __future__ import annotations

from lemon_core.config.listen import UnixAddress, parse_address
from lemon_core.runtime import Runtime


def engine_target(runtime: Runtime) -> str | None:
    """The gRPC target of the gateway, or None for the one in this process.

    A one-shot command always stays in its process.
    """
    section = runtime.config.router
    if not runtime.serve or section.engine_runtime == "in_process":
        return None
    text = section.targets[0] if section.targets else runtime.config.gateway.rpc.listen
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        return f"unix:{runtime.paths.expand(address.path)}"
    return str(address)


def serves_rpc(runtime: Runtime) -> bool:
    """True when RouterService listens."""
    return runtime.serve and runtime.config.router.rpc.enabled
