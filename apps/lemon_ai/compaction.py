"""Shortening a conversation that a model refused as too long, for those who call this package by
themselves. Agents have a compaction of their own, with a real summary and storage.

The first message and the last ones stay; what lies between becomes one note. A tool call is never
parted from its results.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from lemon_ai.adapters.streaming import failed
from lemon_ai.client import Client
from lemon_ai.errors import AIError, error_info, is_context_overflow
from lemon_ai.event_stream import EventStream
from lemon_ai.events import Event, StreamDone, StreamError, StreamStart
from lemon_ai.partial import PartialMessage
from lemon_ai.telemetry import Telemetry
from lemon_ai.text import dump_json
from lemon_ai.tokens import estimate_bytes
from lemon_ai.types import (
    AssistantMessage,
    Context,
    Message,
    Model,
    StreamOptions,
    ToolResultMessage,
    UserMessage,
    now_ms,
)

Strategy = Literal["truncation", "summarization", "hybrid"]
Summarize = Callable[[Sequence[Message]], Awaitable[str]]

MAX_COMPACTIONS: Final = 3
PRESERVE_RECENT: Final = 4
HYBRID_RECENT: Final = 6
# So few removed messages need no word about it.
SILENT: Final = 2


class InsufficientMessages(AIError):
    """There is too little to remove anything."""

    code = "insufficient_messages"

    def __init__(self, count: int, preserve_recent: int) -> None:
        super().__init__(
            f"{count} messages cannot be shortened when the first and the last {preserve_recent} "
            "stay"
        )
        self.count = count


@dataclass(frozen=True, slots=True)
class Compacted:
    """The shorter conversation, and what was done. Tokens are estimated."""

    context: Context
    strategy: Strategy
    original_count: int
    new_count: int
    removed_count: int
    tokens_saved: int
    has_summary: bool

    def metadata(self) -> dict[str, object]:
        """The figures without the conversation."""
        fields = asdict(replace(self, context=Context()))
        del fields["context"]
        return fields


async def compact(
    context: Context,
    strategy: Strategy = "truncation",
    *,
    preserve_recent: int | None = None,
    target_tokens: int | None = None,
    summarize: Summarize | None = None,
) -> Compacted:
    """A context whose middle has become a note.

    `preserve_recent` of the last messages stay (4; 6 for `hybrid`), and more where a turn with tool
    calls would be cut; with `target_tokens` fewer of them, down to one, until the estimate fits.
    `summarize` words what is removed, for `summarization` and `hybrid`; without it both truncate.
    Raises InsufficientMessages.
    """
    recent = preserve_recent or _recent(strategy)
    messages = context.messages
    if len(messages) <= recent + 2:
        raise InsufficientMessages(len(messages), recent)
    head, cut = _head(messages), _cut(messages, recent)
    while target_tokens is not None and recent > 1:
        if _size([*messages[:head], *messages[cut:]]) <= target_tokens:
            break
        recent -= 1
        cut = _cut(messages, recent)
    removed = messages[head:cut]
    if not removed:
        raise InsufficientMessages(len(messages), recent)
    summary = None
    if summarize is not None and strategy != "truncation":
        summary = await summarize(removed)
    note = _note(removed, summary)
    shorter = [*messages[:head], *note, *messages[cut:]]
    return Compacted(
        context=replace(context, messages=shorter),
        strategy=strategy,
        original_count=len(messages),
        new_count=len(shorter),
        removed_count=len(removed),
        tokens_saved=max(0, _size(messages) - _size(shorter)),
        has_summary=summary is not None,
    )


def _recent(strategy: Strategy) -> int:
    return HYBRID_RECENT if strategy == "hybrid" else PRESERVE_RECENT


def _head(messages: Sequence[Message]) -> int:
    """Where the kept beginning ends: behind the first message and the results of its calls."""
    return next(
        (i for i in range(1, len(messages)) if not isinstance(messages[i], ToolResultMessage)),
        len(messages),
    )


def _cut(messages: Sequence[Message], recent: int) -> int:
    """Where the kept end begins: earlier than asked for, where a call would lose its results."""
    cut = len(messages) - recent
    while cut > 1 and isinstance(messages[cut], ToolResultMessage):
        cut -= 1
    return cut


def _size(messages: Sequence[Message]) -> int:
    return sum(
        estimate_bytes(dump_json(message.model_dump(mode="json", include={"content"})))
        for message in messages
    )


def _note(removed: Sequence[Message], summary: str | None) -> list[Message]:
    if summary is None and len(removed) <= SILENT:
        return []
    turns = sum(isinstance(message, UserMessage) for message in removed)
    text = f"[{len(removed)} earlier messages ({turns} turns) were removed to fit the context.]"
    return [UserMessage(content=text if summary is None else f"{text}\n\n{summary}")]


def _is_overflow(last: Event, partial: PartialMessage, model: Model) -> bool:
    """Whether a stream has ended because the request was too long, before any content."""
    if partial.has_content or not isinstance(last, StreamDone | StreamError):
        return False
    return is_context_overflow(last.message, model)


class CompactingClient:
    """`stream` of a client, tried again with a shorter conversation when it is too long.

    At most three times, and never once content has come. What cannot be shortened ends as it
    would without this. A refusal of `client.admission` comes as an event.
    """

    def __init__(
        self,
        client: Client,
        *,
        strategy: Strategy = "truncation",
        summarize: Summarize | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._client, self._strategy, self._summarize = client, strategy, summarize
        self._telemetry = telemetry or client.telemetry

    def stream(
        self, model: Model, context: Context, options: StreamOptions | None = None
    ) -> EventStream:
        """See `Client.stream`."""
        options = options or StreamOptions()

        async def batches(partial: PartialMessage) -> AsyncGenerator[Sequence[Event], None]:
            async with aclosing(self._batches(model, context, options, outer)) as found:
                async for batch in found:
                    yield batch

        outer = EventStream(
            batches, PartialMessage(model, now_ms()), timeout_ms=options.stream_timeout_ms
        )
        return outer

    async def complete(
        self, model: Model, context: Context, options: StreamOptions | None = None
    ) -> AssistantMessage:
        """See `Client.complete`."""
        async with self.stream(model, context, options) as events:
            return await events.result()

    async def _batches(
        self, model: Model, context: Context, options: StreamOptions, outer: EventStream
    ) -> AsyncGenerator[Sequence[Event], None]:
        shortened, whole = 0, context
        while True:
            is_overflow = False
            held: list[Event] = []
            async with AsyncExitStack() as stack:
                try:
                    inner = await stack.enter_async_context(
                        self._client.stream(model, context, options)
                    )
                except AIError as exc:
                    yield [failed(outer.partial, exc.info())]
                    return
                outer.follow(inner.partial)
                while not is_overflow and (batch := await inner.next_batch()):
                    held = [event for event in batch if not isinstance(event, StreamStart)]
                    is_overflow = _is_overflow(batch[-1], inner.partial, model)
                    if held and not is_overflow:
                        yield held
            if not is_overflow:
                return
            shorter = await self._shorter(model, whole, shortened)
            if shorter is None:
                yield held
                return
            context, shortened = shorter, shortened + 1
            self._emit("retry", model, {"attempt": shortened})

    async def _shorter(self, model: Model, context: Context, shortened: int) -> Context | None:
        """The conversation for the next try, made of the whole one; None when there is none."""
        if shortened >= MAX_COMPACTIONS:
            return None
        self._emit("started", model, {"message_count": len(context.messages)})
        try:
            done = await compact(
                context,
                self._strategy,
                preserve_recent=max(1, _recent(self._strategy) >> shortened),
                summarize=self._summarize,
            )
        except AIError as exc:  # too few messages, or a summary that could not be had
            self._emit("failed", model, {}, reason=error_info(exc).code or exc.code)
            return None
        self._emit(
            "succeeded",
            model,
            {"removed_count": done.removed_count, "tokens_saved": done.tokens_saved},
            strategy=done.strategy,
            has_summary=done.has_summary,
        )
        return done.context

    def _emit(
        self, event: str, model: Model, measurements: dict[str, float], **facts: object
    ) -> None:
        metadata = {"provider": model.provider, "model": model.id, **facts}
        self._telemetry.emit(f"lemon_ai.compaction.{event}", measurements, metadata)
