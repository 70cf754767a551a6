"""Several gateways behind one router: which one a run goes to, and what is known when one is gone.

Of the gateways that answer, the rendered conversation key picks one by rendezvous hash, so a
conversation stays on its node, and only its conversations move when a node goes. A run belongs to
the gateway it was first sent to: an answer that got lost may mean that it runs there. It moves only
when that gateway refused it, or when the gateway's process is confirmed dead, which the shared
store tells (`lemon_core.nodes`); silence alone moves nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Never, Protocol

import anyio

from lemon_core.bridges import (
    EngineRuntime,
    ExecutionRejected,
    HealthCheck,
    HealthReport,
    RunNotFound,
    RunSnapshot,
    SteerMode,
    SteerOutcome,
    StreamItem,
    StreamLost,
    SubmitReceipt,
)
from lemon_core.clock import Clock
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger
from lemon_core.resume import render_conversation_key
from lemon_core.rpc.channel import PeerUnavailable
from lemon_core.runs import ExecutionCommand, MissingConversationKey

log = get_logger("lemon_router.targets")

NODE_LOST: Final = "node_lost"
WATCH_MS: Final = 1_000

Alive = Callable[[str], Awaitable[bool]]
"""Whether the process of a node lives; raises when that cannot be told now."""


class NodeGone(LemonError):
    """The gateway of a run is not configured here, or cannot be told from the others now."""

    code = "node_unreachable"

    def __init__(self, run_id: str, node_id: str) -> None:
        super().__init__(f"run {run_id} is on gateway {node_id}, which cannot be reached now")
        self.run_id, self.node_id = run_id, node_id


class Gateway(EngineRuntime, Protocol):
    """A gateway whose followers can be told that it is gone."""

    def give_up(self, reason: str) -> None:
        """End every subscription with `StreamLost`."""


class EngineTargets:
    """`EngineRuntime` over several gateways, by their addresses.

    `node_of(run_id)` is the node in the run's admission record; `run_of(approval_id)` the run that
    asks a question. `serve` is the task that notices dead nodes.
    """

    def __init__(
        self,
        gateways: Mapping[str, Gateway],
        *,
        clock: Clock,
        node_of: Callable[[str], Awaitable[str | None]],
        run_of: Callable[[str], Awaitable[str | None]],
        alive: Alive | None,
    ) -> None:
        self._gateways = dict(gateways)
        self._clock, self._alive = clock, alive
        self._node_of, self._run_of = node_of, run_of
        self._placed: dict[str, str] = {}  # run id to address, until the run is over
        self._nodes: dict[str, str] = {}  # node id to address, as last heard

    # --- choosing ---

    def ranked(self, command: ExecutionCommand) -> Sequence[str]:
        """The addresses in the order in which this conversation wants them."""
        if command.conversation_key is None:
            raise MissingConversationKey(command.run_id)
        key = render_conversation_key(command.conversation_key)

        def weight(address: str) -> bytes:
            return hashlib.sha256(f"{address}\0{key}".encode()).digest()

        return sorted(self._gateways, key=weight, reverse=True)

    async def submit_execution(self, command: ExecutionCommand) -> SubmitReceipt:
        """See `EngineRuntime`; raises `ExecutionRejected` while no gateway may take the run."""
        run_id = command.run_id
        address = self._placed.get(run_id) or await self._recorded(run_id)
        if address is not None:
            return await self._submit_to(address, command)
        refusal = ExecutionRejected("no gateway answers")
        for address in self.ranked(command):
            if not await self._gateways[address].available():
                continue
            try:
                return await self._submit_to(address, command)
            except ExecutionRejected as exc:
                if run_id in self._placed:
                    raise  # it may have been taken there
                refusal = exc
        raise refusal

    async def _submit_to(self, address: str, command: ExecutionCommand) -> SubmitReceipt:
        if address not in self._nodes.values() and not await self._ask_name(address):
            # Without its name nobody could tell later whether it is dead.
            raise ExecutionRejected(f"gateway {address} does not answer")
        self._placed[command.run_id] = address
        try:
            receipt = await self._gateways[address].submit_execution(command)
        except ExecutionRejected as exc:
            if not isinstance(exc.__cause__, PeerUnavailable):
                # Its own answer: nothing of the run is there.
                self._placed.pop(command.run_id, None)
            raise
        except LemonError:
            self._placed.pop(command.run_id, None)
            raise
        self._nodes[receipt.node_id] = address
        return receipt

    # --- finding ---

    async def of_run(self, run_id: str) -> Gateway | None:
        """The gateway of a run; None when nobody has it, or had it and is dead.

        Raises `NodeGone` when the run's node is not known here and not known to be dead.
        """
        address = self._placed.get(run_id) or await self._recorded(run_id)
        return None if address is None else self._gateways[address]

    async def _recorded(self, run_id: str) -> str | None:
        """The address of the node that the run's record names, None for none and for a dead one."""
        node_id = await self._node_of(run_id)
        if node_id is None:
            return None
        if node_id not in self._nodes:
            await self._ask_names()
        address = self._nodes.get(node_id)
        if address is not None:
            return address
        if self._alive is not None and not await self._alive(node_id):
            return None
        raise NodeGone(run_id, node_id)

    async def _ask_names(self) -> None:
        """Learn which node is where, of all that answer."""
        async with anyio.create_task_group() as tasks:
            for address in self._gateways:
                tasks.start_soon(self._ask_name, address)

    async def _ask_name(self, address: str) -> bool:
        try:
            report = await self._gateways[address].health()
        except (LemonError, OSError):
            return False
        for node_id in [name for name, where in self._nodes.items() if where == address]:
            del self._nodes[node_id]
        self._nodes[report.node_id] = address
        return True

    # --- the port ---

    async def available(self) -> bool:
        """True while one of the gateways is."""
        for gateway in self._gateways.values():
            if await gateway.available():
                return True
        return False

    async def health(self) -> HealthReport:
        """One check for each gateway; it is well when one of them is."""
        checks, timestamp = [], ""
        for address, gateway in self._gateways.items():
            try:
                report = await gateway.health()
            except (LemonError, OSError) as exc:
                checks.append(HealthCheck(address, ok=False, error=str(exc)))
            else:
                timestamp = report.timestamp
                checks.append(HealthCheck(address, report.ok, detail={"node_id": report.node_id}))
        return HealthReport("lemon_gateway", timestamp, tuple(checks))

    async def shares_bus(self) -> bool:
        """True when every gateway is on the caller's bus."""
        return all([await gateway.shares_bus() for gateway in self._gateways.values()])

    async def cancel_by_run_id(self, run_id: str, reason: str = "user_requested") -> None:
        """See `EngineRuntime`."""
        try:
            gateway = await self.of_run(run_id)
        except LemonError as exc:
            log.warning("targets.cancel_failed", run_id=run_id, error=str(exc))
            return
        if gateway is not None:
            await gateway.cancel_by_run_id(run_id, reason)

    async def steer(
        self, run_id: str, submission_run_id: str, text: str, mode: SteerMode
    ) -> SteerOutcome:
        """See `EngineRuntime`."""
        gateway = await self.of_run(run_id)
        if gateway is None:
            return SteerOutcome(submission_run_id, mode, False, RunNotFound.code)
        return await gateway.steer(run_id, submission_run_id, text, mode)

    async def get_run(self, run_id: str) -> RunSnapshot | None:
        """See `EngineRuntime`; raises what says that it cannot be told now."""
        gateway = await self.of_run(run_id)
        return None if gateway is None else await gateway.get_run(run_id)

    async def resolve_approval(self, approval_id: str, decision: str) -> bool:
        """See `EngineRuntime`."""
        run_id = await self._run_of(approval_id)
        gateway = None if run_id is None else await self.of_run(run_id)
        return gateway is not None and await gateway.resolve_approval(approval_id, decision)

    async def subscribe(self, run_id: str, after_seq: int = 0) -> AsyncGenerator[StreamItem, None]:
        """See `EngineRuntime`; `StreamLost` with the reason `node_lost` when the node is dead."""
        gateway = await self.of_run(run_id)
        if gateway is None:
            raise StreamLost(run_id, NODE_LOST)
        async with aclosing(gateway.subscribe(run_id, after_seq)) as items:
            async for item in items:
                yield item

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._placed.pop(run_id, None)

    # --- dead nodes ---

    async def serve(self) -> Never:
        """Look for dead nodes, until cancelled; without a shared store nobody can know of any."""
        if self._alive is None:
            await anyio.sleep_forever()
        suspected: set[str] = set()
        while True:
            # The database has no event for a lock that becomes free; this is the schedule.
            await self._clock.sleep(WATCH_MS)
            suspected = await self._look(suspected)

    async def _look(self, suspected: set[str]) -> set[str]:
        """Give up gateways found dead twice in a row; the addresses found dead once."""
        again = set()
        for node_id, address in tuple(self._nodes.items()):
            if await self._gateways[address].available() or await self._lives(node_id):
                continue
            # Once may be a database that restarts and a node that has not connected again.
            if address in suspected:
                self._give_up(node_id, address)
            else:
                again.add(address)
        return again

    async def _lives(self, node_id: str) -> bool:
        assert self._alive is not None
        try:
            return await self._alive(node_id)
        except LemonError as exc:
            log.warning("targets.cannot_tell", node_id=node_id, error=str(exc))
            return True

    def _give_up(self, node_id: str, address: str) -> None:
        runs = [run_id for run_id, where in self._placed.items() if where == address]
        log.error("targets.node_lost", node_id=node_id, address=address, runs=len(runs))
        del self._nodes[node_id]
        for run_id in runs:
            del self._placed[run_id]
        self._gateways[address].give_up(NODE_LOST)
