"""One event for each model call, with sizes, counts and hashes and never a text, for whoever asks
why a prompt is large, why a cache is missed, or what a run cost. Off unless
`LEMON_AI_PROMPT_DIAGNOSTICS=1`.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from lemon_ai.events import Event, StreamCanceled, StreamDone, StreamError
from lemon_ai.telemetry import Telemetry
from lemon_ai.text import dump_json
from lemon_ai.types import AssistantMessage, Context, Message, Model, Tool

log = logging.getLogger(__name__)

SWITCH: Final = "LEMON_AI_PROMPT_DIAGNOSTICS"
LEVEL: Final = "LEMON_AI_PROMPT_DIAGNOSTICS_LOG_LEVEL"
TOP: Final = "LEMON_AI_PROMPT_DIAGNOSTICS_TOP_N"
DEFAULT_TOP: Final = 5


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Where the event goes. `top`: how many of the largest messages are named."""

    telemetry: Telemetry
    level: int = logging.INFO
    top: int = DEFAULT_TOP

    @classmethod
    def of(cls, env: Mapping[str, str], telemetry: Telemetry) -> Diagnostics | None:
        """As the environment wants it; None when it is off."""
        if env.get(SWITCH) != "1":
            return None
        names = logging.getLevelNamesMapping()
        top = env.get(TOP, "")
        return cls(
            telemetry,
            level=names.get(env.get(LEVEL, "").strip().upper(), logging.INFO),
            top=int(top) if top.isdigit() else DEFAULT_TOP,
        )

    async def watch(
        self,
        batches: AsyncGenerator[Sequence[Event], None],
        model: Model,
        context: Context,
        traced: Mapping[str, str],
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The same batches; the event is sent when the call is over, however it ends."""
        started = time.monotonic_ns()
        message: AssistantMessage | None = None
        try:
            async with aclosing(batches):
                async for batch in batches:
                    last = batch[-1] if batch else None
                    if isinstance(last, StreamDone | StreamError | StreamCanceled):
                        message = last.message
                    yield batch
        finally:
            duration_ms = (time.monotonic_ns() - started) / 1_000_000
            self._report(model, context, message, traced, duration_ms)

    def _report(
        self,
        model: Model,
        context: Context,
        message: AssistantMessage | None,
        traced: Mapping[str, str],
        duration_ms: float,
    ) -> None:
        sizes = [_size(m) for m in context.messages]
        measurements = {
            "duration_ms": round(duration_ms, 3),
            "message_count": float(len(sizes)),
            "message_bytes": float(sum(sizes)),
            "system_prompt_bytes": float(len((context.system_prompt or "").encode())),
            "tool_count": float(len(context.tools)),
            "tool_bytes": float(sum(len(_tool(tool)) for tool in context.tools)),
            **_used(message),
        }
        metadata: dict[str, object] = {
            "provider": model.provider,
            "model": model.id,
            "api": model.api,
            "stop_reason": message.stop_reason if message is not None else "aborted",
            "error_category": message.error.category if message and message.error else None,
            "roles": dict(Counter(m.role for m in context.messages)),
            "system_prompt_hash": _hash((context.system_prompt or "").encode()),
            "tools_hash": _hash(b"".join(map(_tool, context.tools))),
            "largest": _largest(context.messages, sizes, self.top),
            **traced,
        }
        self.telemetry.emit("lemon_ai.llm_call", measurements, metadata)
        log.log(self.level, "llm_call", extra={"llm_call": {**measurements, **metadata}})


def _used(message: AssistantMessage | None) -> dict[str, float]:
    usage = message.usage if message is not None else None
    if usage is None:
        return {}
    counts = ("input", "output", "cache_read", "cache_write", "total_tokens")
    used = {name: float(getattr(usage, name)) for name in counts}
    return used if usage.cost is None else {**used, "cost_usd": usage.cost.total}


def _largest(
    messages: Sequence[Message], sizes: Sequence[int], top: int
) -> list[dict[str, object]]:
    order = sorted(range(len(sizes)), key=lambda index: sizes[index], reverse=True)[:top]
    return [
        {
            "index": index,
            "role": messages[index].role,
            "bytes": sizes[index],
            "hash": _hash(_dump(messages[index])),
        }
        for index in order
    ]


def _dump(message: Message) -> bytes:
    return dump_json(message.model_dump(mode="json", include={"role", "content"}))


def _size(message: Message) -> int:
    return len(_dump(message))


def _tool(tool: Tool) -> bytes:
    return dump_json([tool.name, tool.description, tool.parameters])


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:12]
