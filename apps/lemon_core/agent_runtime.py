"""Questions to the running agent product, with an answer whatever happens.

The agent product registers one provider; each of its callbacks is optional and may be async. Who
asks names what it does without an answer.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Final, Literal

from lemon_core.capabilities import Capabilities
from lemon_core.clock import Clock, within
from lemon_core.logs import get_logger

log = get_logger("lemon_core.agent_runtime")

AGENT_RUNTIME: Final = "agent_runtime"
CALL_TIMEOUT_MS: Final = 5_000

AgentCallback = Literal[
    "list_tasks",
    "get_task",
    "todo_progress",
    "feature_progress",
    "compact_session",
    "run_graph",
    "progress_snapshot",
    "load_extensions",
    "extension_providers",
    "extension_info",
    "tool_conflicts",
    "extension_dirs",
    "wasm_sidecar_running",
]
"""What a provider may have, as methods of these names:

`list_tasks() -> [(id, record)]`, `get_task(id) -> (record, events)`,
`todo_progress(session_key)` (a map with `actionable_count`), `feature_progress(cwd)`,
`compact_session(session_key, **options) -> {status: compacted|started, tokens_before,
tokens_after?}` (or `{error: session_not_found}`; a summary by a model goes on in the background),
`run_graph(run_id)`, `progress_snapshot(session_id, cwd)`, `load_extensions(paths)`,
`extension_providers(extensions)`, `extension_info(extensions)`, `tool_conflicts(cwd, **options)`,
`extension_dirs(cwd)` (the global one first), `wasm_sidecar_running() -> bool`."""


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """The agent product as everybody else sees it: a call never raises and never hangs."""

    capabilities: Capabilities
    clock: Clock
    timeout_ms: int = CALL_TIMEOUT_MS

    def register(self, provider: object) -> None:
        """Make `provider` the one that answers; `Capabilities.clear(AGENT_RUNTIME, provider)`
        takes it back."""
        self.capabilities.register(AGENT_RUNTIME, provider)

    def available(self) -> bool:
        """True when there is a provider; it need not have every callback."""
        return self.capabilities.get(AGENT_RUNTIME) is not None

    async def call(
        self, name: AgentCallback, *args: object, fallback: object, **options: object
    ) -> object:
        """What the provider's callback `name` answers to `args` and `options`.

        `fallback` when there is no provider, when it has no such callback, when that raises, and
        when it takes longer than 5 s.
        """
        callback = getattr(self.capabilities.get(AGENT_RUNTIME), name, None)
        if not callable(callback):
            return fallback

        async def answer() -> object:
            value: object = callback(*args, **options)
            return await value if inspect.isawaitable(value) else value

        try:
            return await within(self.clock, self.timeout_ms, answer)
        except Exception:  # whoever asks has said what it does without an answer
            log.exception("agent_runtime.no_answer", callback=name)
            return fallback
