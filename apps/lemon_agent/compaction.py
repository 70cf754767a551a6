"""The one mechanism that keeps a conversation within its model's window.

A step before each model call, inside long tool loops too: what is oldest becomes one summary. The
decisions are plain functions over the history; `compact` is the step that the loop calls. Whoever
builds the agent supplies the summary and the storing (`Compaction`), and has no trigger of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from lemon_agent.context import can_begin, estimate_size, message_chars, tokens_of
from lemon_agent.events import Compacted
from lemon_agent.signal import AbortSignal
from lemon_agent.states import LoopState
from lemon_agent.types import AgentMessage
from lemon_ai import AssistantMessage, ToolResultMessage, Usage, UserMessage
from lemon_core.logs import get_logger

if TYPE_CHECKING:
    from lemon_agent.run_record import RunRecord

log = get_logger(__name__)

SUMMARY_TIMEOUT_S: Final = 120.0
USELESS_PASSES: Final = 3
USEFUL_SHARE: Final = 0.1
FORCED_KEEP: Final = 5
LIMIT_TRIGGER: Final = 0.9
LIMIT_KEEP: Final = 0.6
LIMIT_KEEP_AT_LEAST: Final = 20

_INTRODUCTION = (
    "The conversation before this point was shortened. It is summarised here as background; "
    "requests in it have been dealt with unless the summary says otherwise.\n\n"
)


class SummaryMessage(UserMessage):
    """What stands for the messages that a compaction removed.

    `kept` messages right behind it are older than the compaction: the usage that their answers
    report is of the long context and says nothing about this one.
    """

    kept: int = 0

    @classmethod
    def of(cls, summary: str, kept: int) -> SummaryMessage:
        """The message that shows `summary` to the model."""
        return cls(content=_INTRODUCTION + summary, kept=kept)


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary with what the model call for it used, so that the run's budget counts it."""

    text: str
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did: `removed` became `summary`, and `kept` follows it unchanged."""

    summary: SummaryMessage
    removed: Sequence[AgentMessage]
    kept: Sequence[AgentMessage]
    tokens_before: int
    tokens_after: int
    forced: bool


Summarize = Callable[[Sequence[AgentMessage], AbortSignal], Awaitable[str | Summary]]
Persist = Callable[[CompactionResult], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When and how a conversation is shortened. Sizes are tokens.

    `summarize` gets the messages that go and answers within 120 s; when it fails or is late, a
    fixed note stands in. `persist` stores the result before it takes effect. `message_limit` is
    the number of messages that a provider accepts, where there is one.
    """

    context_window: int
    summarize: Summarize
    persist: Persist
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000
    trigger_ratio: float = 0.9
    message_limit: int | None = None

    @property
    def threshold(self) -> int:
        """Above so many tokens a compaction is due. At most half a small window is reserved."""
        reserve = min(self.reserve_tokens, self.context_window // 2)
        return int(min(self.context_window - reserve, self.context_window * self.trigger_ratio))


@dataclass(frozen=True, slots=True)
class ContextTooLarge:
    """Nothing more can be saved; `detail` names what is too large."""

    detail: str


# -- decisions -------------------------------------------------------------------------------


def context_size(messages: Sequence[AgentMessage], fixed_chars: int) -> int:
    """The tokens that the next call will hold: the last reported figure and what came since.

    Figures from before a compaction do not count; without one everything is estimated.
    `fixed_chars` are those of the system prompt and the tool schemas.
    """
    first = messages[0] if messages else None
    stale = 1 + first.kept if isinstance(first, SummaryMessage) else 0
    for index in range(len(messages) - 1, stale - 1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage) and message.stop_reason in ("stop", "tool_use"):
            usage = message.usage
            if usage is not None and usage.total_tokens > 0:
                return usage.total_tokens + tokens_of(estimate_size(messages[index + 1 :]))
    return tokens_of(fixed_chars + estimate_size(messages))


def is_due(compaction: Compaction, messages: Sequence[AgentMessage], tokens: int) -> bool:
    """Whether the history has to be shortened before the next call."""
    limit = compaction.message_limit
    if limit is not None and len(messages) >= LIMIT_TRIGGER * limit:
        return True
    return tokens > compaction.threshold


def cut_point(
    messages: Sequence[AgentMessage],
    keep_tokens: int,
    *,
    keep_at_least: int = 1,
    keep_at_most: int | None = None,
) -> int:
    """Where the kept part begins; 0 when nothing can go.

    Walks back until `keep_tokens` (or `keep_at_most` messages) is reached, then on to the nearest
    place where a history may begin. At least `keep_at_least` messages stay, and a summary alone is
    not worth another one.
    """
    at, tokens = len(messages), 0
    while at > 0 and (len(messages) - at < keep_at_least or tokens < keep_tokens):
        if keep_at_most is not None and len(messages) - at >= keep_at_most:
            break
        at -= 1
        tokens += tokens_of(message_chars(messages[at]))
    at = min(at, len(messages) - 1)
    while at > 0 and not can_begin(messages, at):
        at -= 1
    return 0 if at == 1 and isinstance(messages[0], SummaryMessage) else max(at, 0)


def largest_part(messages: Sequence[AgentMessage], system_prompt: str, schema_chars: int) -> str:
    """What takes the most room, in words: the fixed part, or one message by role and tool."""
    fixed = tokens_of(len(system_prompt) + schema_chars)
    sizes = [tokens_of(message_chars(message)) for message in messages]
    if not sizes or fixed >= max(sizes):
        prompt, schemas = tokens_of(len(system_prompt)), tokens_of(schema_chars)
        return (
            f"the fixed part of the prompt takes about {fixed} tokens "
            f"(system prompt {prompt}, tool schemas {schemas})"
        )
    message = messages[sizes.index(max(sizes))]
    name = message.role.replace("_", " ")
    tool = f" of {message.tool_name}" if isinstance(message, ToolResultMessage) else ""
    return f"the largest message is a {name}{tool} of about {max(sizes)} tokens"


def removal_note(removed: Sequence[AgentMessage]) -> str:
    """What stands in for a summary that could not be made."""
    counts = Counter(message.role for message in removed)
    parts = ", ".join(f"{count} {role.replace('_', ' ')}" for role, count in counts.items())
    return f"{len(removed)} earlier messages were removed ({parts}); no summary could be made."


# -- the step --------------------------------------------------------------------------------


async def compact(run: RunRecord, *, forced: bool = False) -> ContextTooLarge | None:
    """Shorten the run's context when it is due, or `forced` by an overflow.

    Returns when the next call may be made, also on an abort, or what is too large when three
    passes in a row, over any number of steps, saved less than a tenth.
    """
    compaction = run.config.compact
    if compaction is None:
        return None
    keep = compaction.keep_recent_tokens
    while not run.signal.aborted:
        before = _size(run)
        if not forced and not is_due(compaction, run.messages, before):
            run.useless_passes = 0
            return None
        cut = _cut(compaction, run.messages, keep, before, forced=forced)
        while cut == 0 and keep > 0:
            # What is recent is all there is: keeping less of it is better than no answer.
            keep //= 2
            cut = _cut(compaction, run.messages, keep, before, forced=forced)
        if cut == 0:
            # An estimate above the trigger is no reason to refuse what may still fit.
            fits = not forced and before <= compaction.context_window
            return None if fits else _too_large(run, compaction, before)
        if run.state is not LoopState.COMPRESSING_CONTEXT:
            run.move(LoopState.COMPRESSING_CONTEXT)
        after = await _replace(run, compaction, cut, before, forced=forced)
        if after is None:
            return None
        useless = after > before * (1 - USEFUL_SHARE)
        run.useless_passes = run.useless_passes + 1 if useless else 0
        if run.useless_passes >= USELESS_PASSES:
            return _too_large(run, compaction, after)
        # What is left may still be too much: the next pass keeps less.
        forced, keep = False, keep // 2
    return None


def _cut(
    compaction: Compaction,
    messages: Sequence[AgentMessage],
    keep_tokens: int,
    tokens: int,
    *,
    forced: bool,
) -> int:
    if forced:
        # Less than what has just been refused, whatever the configured figure says.
        return cut_point(messages, min(keep_tokens, tokens // 2), keep_at_least=FORCED_KEEP)
    limit = compaction.message_limit
    if limit is None or len(messages) < LIMIT_TRIGGER * limit:
        return cut_point(messages, keep_tokens)
    at_most = max(int(LIMIT_KEEP * limit), LIMIT_KEEP_AT_LEAST)
    return cut_point(messages, keep_tokens, keep_at_most=at_most)


async def _replace(
    run: RunRecord, compaction: Compaction, cut: int, before: int, *, forced: bool
) -> int | None:
    """Put a summary in the place of everything before `cut`; the new size, None when aborted."""
    removed, kept = tuple(run.messages[:cut]), tuple(run.messages[cut:])
    with anyio.CancelScope() as scope, run.signal.watching(scope.cancel):
        text = await _summary(run, compaction, removed)
        summary = SummaryMessage.of(text, len(kept))
        shortened: list[AgentMessage] = [summary, *kept]
        after = context_size(shortened, _fixed_chars(run))
        await compaction.persist(
            CompactionResult(summary, removed, kept, before, after, forced=forced)
        )
        # Stored, so it takes effect, whatever comes in between.
        run.messages[:] = shortened
        run.emit(Compacted(before, after, len(removed), forced, summary, kept[0]))
        return after
    return None


async def _summary(run: RunRecord, compaction: Compaction, removed: Sequence[AgentMessage]) -> str:
    made: str | Summary = ""
    try:
        with anyio.fail_after(SUMMARY_TIMEOUT_S):
            made = await compaction.summarize(removed, run.signal)
    except Exception as exc:  # whatever fails, the conversation has to go on
        log.warning("compaction.summary_failed", error=f"{type(exc).__name__}: {exc}")
    if isinstance(made, Summary):
        run.tally.add_usage(made.usage)
        made = made.text
    return made.strip() or removal_note(removed)


def _size(run: RunRecord) -> int:
    return context_size(run.messages, _fixed_chars(run))


def _fixed_chars(run: RunRecord) -> int:
    return len(run.system_prompt) + run.snapshot.chars


def _too_large(run: RunRecord, compaction: Compaction, tokens: int) -> ContextTooLarge:
    part = largest_part(run.messages, run.system_prompt, run.snapshot.chars)
    return ContextTooLarge(
        f"the conversation of about {tokens} tokens does not fit the window of "
        f"{compaction.context_window} and cannot be shortened further: {part}"
    )
