"""A model call that goes on with the next credential or provider when one does not answer.

Nothing fails over once the answer has begun: from the first useful event on (text or thinking that
is not blank, a tool call) what the provider sends is what the consumer gets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import SecretStr

from lemon_agent.runtime.credentials import DEFAULT_REF, Credential
from lemon_agent.runtime.health import CredentialHealth, Pin, SessionPins
from lemon_agent.runtime.options import with_provider_options
from lemon_agent.types import StreamFn
from lemon_ai import (
    AIError,
    Context,
    Event,
    EventStream,
    Model,
    StreamCanceled,
    StreamDone,
    StreamError,
    StreamOptions,
    StreamStart,
    TextDelta,
    ThinkingDelta,
    ToolCallStart,
)
from lemon_ai.errors import FailoverAction, error_info, failover_action
from lemon_ai.partial import PartialMessage
from lemon_ai.types import ErrorInfo, now_ms

# The longest wait that a provider may ask for while somebody else can be asked instead.
MAX_WAIT_MS: Final = 2_000
EMPTY: Final = ErrorInfo(
    category="transient",
    code="empty_provider_stream",
    message="the provider answered with nothing",
    retryable=True,
)


Candidates = Callable[[Model], Awaitable[Sequence[Model]]]
"""The models that may answer instead of one, itself first: asked anew for every call."""

Credentials = Callable[[str], Awaitable[Sequence[Credential]]]
"""The keys of a provider in order; none for a provider that needs no key."""


def with_failover(
    stream_fn: StreamFn,
    candidates: Candidates,
    credentials: Credentials,
    *,
    health: CredentialHealth,
    pins: SessionPins,
    session_id: str | None = None,
) -> StreamFn:
    """`stream_fn` that tries the candidates' credentials in turn until one answers.

    The session's pinned provider and credential lead. Credentials that rest are passed over unless
    all of a provider's do. While there is another one to ask, nobody waits for long because a
    provider wishes it. When everybody fails the last error is delivered. There is no deadline
    over all attempts: each has the `stream_timeout_ms` of its own call.
    """

    def stream(model: Model, context: Context, options: StreamOptions) -> EventStream:
        attempts = _Attempts(model, candidates, credentials, health, pins, session_id)

        async def batches(partial: PartialMessage) -> AsyncGenerator[Sequence[Event], None]:
            async for batch in _relay(attempts, stream_fn, context, options, outer.follow):
                yield batch

        outer = EventStream(batches, PartialMessage(model, now_ms()), timeout_ms=None)
        return outer

    return stream


@dataclass(slots=True)
class _Attempt:
    model: Model
    credential: Credential
    is_natural: bool

    @property
    def pin(self) -> Pin:
        return Pin(self.model.provider, self.credential.ref)


@dataclass(slots=True)
class _Attempts:
    """Whom to ask, in which order, and what is learned from it."""

    model: Model
    candidates: Candidates
    credentials: Credentials
    health: CredentialHealth
    pins: SessionPins
    session_id: str | None

    async def providers(self) -> list[tuple[Model, list[_Attempt]]]:
        """The candidates with their attempts; the pinned ones lead."""
        pinned = self.pins.get(self.session_id)
        natural = _unique(await self.candidates(self.model) or (self.model,))
        models = natural
        if pinned is not None:
            models = sorted(natural, key=lambda model: model.provider != pinned.provider)
        return [
            (model, await self._attempts(model, pinned, is_first=model is natural[0]))
            for model in models
        ]

    async def _attempts(
        self, model: Model, pinned: Pin | None, *, is_first: bool
    ) -> list[_Attempt]:
        found = {c.ref: c for c in await self.credentials(model.provider)}
        known = found or {DEFAULT_REF: Credential(DEFAULT_REF)}
        first = next(iter(known))
        refs = self.health.usable(model.provider, list(known))
        if pinned is not None and pinned.provider == model.provider:
            refs.sort(key=lambda ref: ref != pinned.ref)
        return [_Attempt(model, known[ref], is_natural=is_first and ref == first) for ref in refs]

    def answered(self, attempt: _Attempt) -> None:
        """The attempt's answer has begun."""
        self.health.succeeded(attempt.model.provider, attempt.credential.ref)
        if attempt.is_natural:
            self.pins.clear(self.session_id)
        else:
            self.pins.set(self.session_id, attempt.pin)

    def failed(self, attempt: _Attempt, failure: ErrorInfo) -> FailoverAction:
        """The attempt came to nothing; what to do next."""
        self.health.failed(attempt.model.provider, attempt.credential.ref, failure)
        if self.pins.get(self.session_id) == attempt.pin:
            self.pins.clear(self.session_id)
        return failover_action(failure)


@dataclass(slots=True)
class _Outcome:
    """How an attempt went: what was held back, and why it failed unless it answered."""

    held: list[Event] = field(default_factory=list)
    failure: ErrorInfo | None = None
    is_answering: bool = False
    partial: PartialMessage | None = None


async def _relay(
    attempts: _Attempts,
    stream_fn: StreamFn,
    context: Context,
    options: StreamOptions,
    follow: Callable[[PartialMessage], None],
) -> AsyncGenerator[Sequence[Event], None]:
    """The batches of the first attempt that answers, or those of the last one that did not."""
    last = _Outcome()
    providers = await attempts.providers()
    final = next((c[-1] for _, c in reversed(providers) if c), None)
    for _, credentials in providers:
        for attempt in credentials:
            outcome = _Outcome()
            try:
                mine = _options_of(attempt, options, attempts, is_last=attempt is final)
                async with stream_fn(attempt.model, context, mine) as inner:
                    outcome.partial = inner.partial
                    while batch := await inner.next_batch():
                        if outcome.is_answering:
                            yield batch
                            continue
                        outcome.held += (e for e in batch if not isinstance(e, StreamStart))
                        if any(map(_is_useful, batch)):
                            outcome.is_answering = True
                            attempts.answered(attempt)
                            follow(inner.partial)
                            yield outcome.held
                            outcome.held = []
            except AIError as exc:
                # Refused before it went out (too many at once, no such wire API).
                if outcome.is_answering:
                    raise
                outcome.failure = error_info(exc)
            if outcome.is_answering:
                return
            outcome.failure = outcome.failure or _failure_of(outcome)
            last = outcome
            action = attempts.failed(attempt, outcome.failure)
            if action in ("fail", "compact"):
                yield _given_up(last, attempts.model, follow)
                return
            if action == "next_provider":
                break
    yield _given_up(last, attempts.model, follow)


def _failure_of(outcome: _Outcome) -> ErrorInfo:
    """Why an attempt that never answered did not."""
    match outcome.held[-1] if outcome.held else None:
        case StreamError(message=message):
            return error_info(message)
        case StreamCanceled(reason=reason, message=message):
            info = error_info(message)
            # A provider that says nothing until its time is up is not asked again at once.
            return info.model_copy(update={"category": "transient", "code": reason})
        case _:
            return EMPTY


def _given_up(
    last: _Outcome, model: Model, follow: Callable[[PartialMessage], None]
) -> Sequence[Event]:
    partial = last.partial or PartialMessage(model, now_ms())
    follow(partial)
    held = last.held
    if held and isinstance(held[-1], StreamError | StreamCanceled):
        return held
    without_end = [event for event in held if not isinstance(event, StreamDone)]
    partial.close_prose()
    error = StreamError("error", partial.broken("error", last.failure or EMPTY))
    return [*without_end, *partial.drain(), error]


def _options_of(
    attempt: _Attempt, options: StreamOptions, attempts: _Attempts, *, is_last: bool
) -> StreamOptions:
    mine = _with_key(options, attempt, attempts)
    if is_last or mine.max_retry_wait_ms <= MAX_WAIT_MS:
        return mine
    return mine.model_copy(update={"max_retry_wait_ms": MAX_WAIT_MS})


def _with_key(options: StreamOptions, attempt: _Attempt, attempts: _Attempts) -> StreamOptions:
    """The options with the attempt's key; a key that came along is for its own provider alone."""
    options = with_provider_options(options, attempt.model, attempt.credential.options)
    key = attempt.credential.api_key
    if key is not None:
        return options.model_copy(update={"api_key": SecretStr(key)})
    if attempt.model.provider == attempts.model.provider:
        return options
    return options.model_copy(update={"api_key": None})


def _is_useful(event: Event) -> bool:
    match event:
        case TextDelta(delta=delta) | ThinkingDelta(delta=delta):
            return bool(delta.strip())
        case ToolCallStart():
            return True
        case _:
            return False


def _unique(models: Iterable[Model]) -> list[Model]:
    """The first model of each provider."""
    found: dict[str, Model] = {}
    for model in models:
        found.setdefault(model.provider, model)
    return list(found.values())
