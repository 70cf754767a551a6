"""How the router reads its section: which gateways it has, and what it serves."""

from __future__ import annotations

from lemon_core.config.listen import UnixAddress, parse_address
from lemon_core.errors import LemonError
from lemon_core.paths import PathSettings
from lemon_core.runtime import Runtime


class TargetsNeedSharedStore(LemonError):
    """Several gateways can only be told apart and tried again safely on one store."""

    code = "targets_need_shared_store"

    def __init__(self, count: int) -> None:
        super().__init__(
            f"router.engine_targets names {count} gateways, which need one store: set "
            'store.backend = "postgres" on this node and on theirs, or name one gateway'
        )


def engine_targets(runtime: Runtime) -> tuple[str, ...]:
    """The gRPC targets of the gateways; none for the gateway in this process.

    A one-shot command always stays in its process. Raises `TargetsNeedSharedStore`.
    """
    section = runtime.config.router
    if not runtime.serve or section.engine_runtime == "in_process":
        return ()
    texts = section.targets or (runtime.config.gateway.rpc.listen,)
    targets = tuple(dict.fromkeys(_target(text, runtime.paths) for text in texts))
    if len(targets) > 1 and not runtime.store.shared:
        raise TargetsNeedSharedStore(len(targets))
    return targets


def _target(text: str, paths: PathSettings) -> str:
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        return f"unix:{paths.expand(address.path)}"
    return str(address)
