"""Finding a code by a pattern that a model wrote, without trusting the pattern.

A pattern can cost in three places. Matching may take for ever: it has 100 ms, in a thread that lets
the event loop go on meanwhile. Compiling unrolls counted repeats, so that thirty characters can ask
for gigabytes: the counts of a pattern are multiplied, and above a limit it is not compiled. And a
pattern may fail in its nesting. Whatever cannot be used gives way to the default rule.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from lemon_core.logs import get_logger
from lemon_gateway.sms.messages import SmsMessage

MATCH_LIMIT_MS: Final = 100
MAX_PATTERN_CHARS: Final = 500
MAX_REPEATS: Final = 1_000

# The limit of a match counts the processor's time; on a busy machine the thread may get none.
_ABANDON_AFTER_S: Final = 2.0

_COUNTS: Final = re.compile(r"\{([^{}]*)\}")
# With the flag x, spaces and comments may stand inside a count.
_VERBOSE: Final = re.compile(r"\(\?[A-Za-z0-9-]*x")

log = get_logger("lemon_gateway.sms")


class UnfitPattern(Exception):
    """The match had not ended after its time, or broke off."""


class CodeRule(Protocol):
    """How the code of a message is found."""

    async def code_of(self, message: SmsMessage) -> str | None:
        """The code, or None when there is none in it; raises `UnfitPattern`."""


class DefaultRule:
    """The first number of four to eight digits."""

    async def code_of(self, message: SmsMessage) -> str | None:
        """See `CodeRule`."""
        return message.codes[0] if message.codes else None


class PatternRule:
    """What the pattern matches first, all of the match."""

    def __init__(self, compiled: Any, threads: anyio.CapacityLimiter) -> None:
        self._compiled, self._threads = compiled, threads

    async def code_of(self, message: SmsMessage) -> str | None:
        """See `CodeRule`."""
        found: list[str] = []

        def search() -> None:
            # `concurrent` lets go of the interpreter lock while the pattern is at work.
            match = self._compiled.search(
                message.body, timeout=MATCH_LIMIT_MS / 1000, concurrent=True
            )
            if match is not None:
                found.append(match.group())

        try:
            with anyio.fail_after(_ABANDON_AFTER_S):
                await anyio.to_thread.run_sync(
                    search, abandon_on_cancel=True, limiter=self._threads
                )
        except Exception as exc:  # out of time or memory, or a fault of the matcher: all the same
            raise UnfitPattern from exc
        return found[0] if found and found[0] else None


async def rule_for(pattern: str | None, threads: anyio.CapacityLimiter) -> CodeRule:
    """The rule of a pattern; without one, or with one that cannot be used, the default rule."""
    if not pattern:
        return DefaultRule()
    if _is_too_large(pattern):
        log.warning("sms.pattern_unusable", reason="too large", char_count=len(pattern))
        return DefaultRule()
    try:
        compiled = await anyio.to_thread.run_sync(_compiled, pattern, limiter=threads)
    except (
        Exception
    ) as exc:  # the compiler raises more than its own error: RecursionError, KeyError
        log.warning("sms.pattern_unusable", reason=type(exc).__name__, char_count=len(pattern))
        return DefaultRule()
    return PatternRule(compiled, threads)


def _compiled(pattern: str) -> Any:
    # A few milliseconds, and only for runs that bring a pattern.
    import regex  # type: ignore[import-untyped]  # its stubs are a package of their own

    return regex.compile(pattern, cache_pattern=False)


def _is_too_large(pattern: str) -> bool:
    if len(pattern) > MAX_PATTERN_CHARS or _VERBOSE.search(pattern):
        return True
    repeats = 1
    for inside in _COUNTS.findall(pattern):
        numbers = [int(text[:9]) for text in re.findall(r"\d+", inside)]
        repeats *= max(1, *numbers) if numbers else 1
        if repeats > MAX_REPEATS:
            return True
    return False
