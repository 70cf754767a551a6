"""The executor that the gateway runs: a thin boundary around `Runner`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coding_agent.runner import Runner
from coding_agent.services import Services, services
from lemon_gateway.executor import ExecutorError, RunHandle, RunOptions, Sink, SteerResult
from lemon_gateway.requests import ExecutionRequest

if TYPE_CHECKING:
    from lemon_core.runtime import Runtime


class Executor:
    """Built once per runtime; the gateway finds it by the path in the profile."""

    def __init__(self, runtime: Runtime) -> None:
        self._services: Services = runtime.service(services)

    async def start_run(self, request: ExecutionRequest, opts: RunOptions, sink: Sink) -> RunHandle:
        """Accept a run; everything that happens to it is told through `sink`.

        Raises `ExecutorError`: `invalid_execution_request` or `coding_agent_unavailable`.
        """
        # The gateway's boundary takes foreign code on both sides: the annotation is a promise.
        given: object = request
        if not isinstance(given, ExecutionRequest):
            raise ExecutorError("invalid_execution_request", f"got a {type(given).__name__}")
        if not self._services.is_up:
            raise ExecutorError(
                "coding_agent_unavailable",
                "the coding agent is not running: the profile's components must name "
                "coding_agent.app:component, before the gateway's",
            )
        runner = Runner(request, opts, sink, self._services)
        return RunHandle(runner.run_ref, runner, runner.run())

    async def cancel(self, control: object) -> None:
        """Stop a run. Always succeeds, also for runs that are over."""
        if isinstance(control, Runner):
            await control.cancel()

    async def steer(self, control: object, text: str) -> SteerResult:
        """Give a run more input, read after the current tool."""
        return control.steer(text) if isinstance(control, Runner) else "unsupported"

    async def redirect(self, control: object, text: str) -> SteerResult:
        """Correct a run: only the model call in flight is given up, finished tools count."""
        return control.redirect(text) if isinstance(control, Runner) else "unsupported"
