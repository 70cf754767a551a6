"""A component with a router that plays a conversation: what a message says decides what happens.

- `hold` streams `begun` and waits for `go` (which it takes as a steer), an abort, or `release`.
- `ask` puts a real question about a command, and answers with what came of it.
- `edit` changes a file, as the actions of a tool tell.
- `evil` answers with what a terminal must not obey.
- anything else is answered with itself, in Markdown.

While something is held, other messages wait in line.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from lemon_cli.tests.fake_app import FakeRouter
from lemon_core.approvals import ApprovalRequest, Approved, ExecApprovals
from lemon_core.bridges import ROUTER, SubmitResult
from lemon_core.bus import Bus, run_topic
from lemon_core.runs import RunRequest
from lemon_core.runtime import Runtime

EVIL = "evil \x1b[2J\x1b]0;title\x07\x9b31m &#27;[31m [link](http://x/\x1b[5m) end"
DIFF = "Edited a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three"


class FakeChatRouter(FakeRouter):
    """One conversation, its runs in `tasks`."""

    def __init__(self, bus: Bus, approvals: ExecApprovals, tasks: anyio.abc.TaskGroup) -> None:
        super().__init__(bus, None)
        self._approvals, self._tasks = approvals, tasks
        self._held: str | None = None
        self._waiting: list[RunRequest] = []

    async def submit_run(self, request: RunRequest) -> SubmitResult:
        run_id = request.run_id
        assert run_id is not None
        self.requests.append(request)
        if self._held is None:
            self._tasks.start_soon(self._run, request)
            return SubmitResult("accepted", run_id, detail={"disposition": "started"})
        if request.queue_mode == "steer":
            absorbed = {"run_id": run_id, "absorbed_by": self._held, "mode": "steer"}
            self._say(run_id, "run_absorbed", absorbed)
            if request.prompt == "go":
                self._release()
            return SubmitResult("accepted", run_id, detail={"disposition": "steering"})
        self._waiting.append(request)
        return SubmitResult("accepted", run_id, detail={"disposition": "queued", "position": 1})

    async def _run(self, request: RunRequest) -> None:
        run_id = request.run_id
        assert run_id is not None
        named = {"model": "gpt-5.4", "provider": "openai"}
        self._say(run_id, "engine_started", {"run_id": run_id, "meta": named})
        match request.prompt.split()[0]:
            case "hold":
                self._held = run_id
                self._delta(run_id, "begun")
            case "ask":
                self._end(run_id, await self._ask(request))
            case "edit":
                self._edit(run_id)
                self._end(run_id, "changed")
            case "evil":
                self._delta(run_id, EVIL)
                self._end(run_id, EVIL)
            case "fail":
                self._completed(run_id, {"ok": False, "error": {"code": "x", "message": "no luck"}})
            case "facts":
                facts = {
                    "model": request.model,
                    "meta": request.meta,
                    "images": [image.mime_type for image in request.images],
                    "cwd": request.cwd,
                }
                self._end(run_id, f"```\n{json.dumps(facts, indent=1)}\n```")
            case _:
                text = f"# Echo\n\nYou said **{request.prompt}**."
                for piece in text.split(" "):
                    self._delta(run_id, f"{piece} ")
                self._end(run_id, text)

    async def _ask(self, request: RunRequest) -> str:
        asked = ApprovalRequest(
            tool="bash",
            action={"command": "rm -rf build"},
            run_id=request.run_id,
            session_key=request.session_key,
        )
        assert request.run_id is not None
        topic = run_topic(request.run_id)
        with self._bus.listening(
            ("exec_approvals",), lambda event: self._bus.publish(topic, event)
        ):
            answer = await self._approvals.request(asked)
        return f"allowed {answer.scope}" if isinstance(answer, Approved) else "refused"

    def _edit(self, run_id: str) -> None:
        action: dict[str, object] = {"id": "tool_1", "kind": "file_change", "title": "edit: a.txt"}
        self._say(run_id, "engine_action", {"action": action, "phase": "started"})
        done = {"action": {**action, "detail": {"result": DIFF}}, "phase": "completed", "ok": True}
        self._say(run_id, "engine_action", done)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._end(held, "begun and released")
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._tasks.start_soon(self._run, request)

    def _delta(self, run_id: str, text: str) -> None:
        self._say(run_id, "delta", {"run_id": run_id, "seq": 1, "text": text})

    def _end(self, run_id: str, answer: str) -> None:
        usage = {"input": 1200, "output": 34, "cost_usd": 0.0123, "context_tokens": 40_000}
        self._completed(run_id, {"ok": True, "answer": answer, "usage": usage})

    def _completed(self, run_id: str, completed: Mapping[str, object]) -> None:
        self._say(run_id, "run_completed", {"completed": completed, "duration_ms": 1500})

    def _say(self, run_id: str, event_type: str, payload: object) -> None:
        self._bus.publish_event(run_topic(run_id), event_type, payload)

    async def abort_run(self, run_id: str, reason: str = "user_requested") -> None:
        if run_id == self._held:
            self._held = None
            self._completed(run_id, {"ok": False, "error": reason, "answer": "begun"})
            self._release()
        elif any(request.run_id == run_id for request in self._waiting):
            self._waiting = [r for r in self._waiting if r.run_id != run_id]
            self._completed(run_id, {"ok": False, "error": reason})


@asynccontextmanager
async def component(runtime: Runtime) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        router = FakeChatRouter(runtime.bus, runtime.approvals, tasks)
        runtime.capabilities.register(ROUTER, router)
        yield
        tasks.cancel_scope.cancel()
