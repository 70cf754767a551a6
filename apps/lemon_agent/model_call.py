"""One model call: from the history to the final answer, whatever happens on the way.

Failures come back as an answer with stop reason `error`. An abort or a redirect stops the call
where it is: an open stream is cancelled through its own `cancel`, anything before it (key,
transform, opening) by a cancel scope.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import anyio
from pydantic import SecretStr

from lemon_agent.events import MessageStart, MessageUpdate, ModelSwitched
from lemon_agent.run_record import RunRecord
from lemon_agent.transcript import InvalidTranscript, validate_transcript
from lemon_ai import (
    AIError,
    AssistantMessage,
    Context,
    EventStream,
    StreamCanceled,
    StreamDone,
    StreamError,
    StreamOptions,
    StreamStart,
    TextContent,
    ToolCall,
    get_text,
    get_tool_calls,
)
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger

log = get_logger(__name__)

Interruption = Literal["aborted", "redirected"]
_ABORT_REASONS = frozenset({"aborted", "canceled", "user_abort"})
EMPTY_RESPONSE = "empty_assistant_response"
_EMPTY_NOTICE = "(The model returned an empty answer.)"


@dataclass(slots=True)
class Answer:
    """The final message; `failure` is the run's error code when its stop reason is `error`."""

    message: AssistantMessage
    failure: str = "assistant_error"


@dataclass(slots=True)
class _Flight:
    """The call in the air: what stops it, and what has become of it so far."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stream: EventStream | None = None
    stopped: Interruption | None = None
    terminal: StreamDone | StreamError | StreamCanceled | None = None
    announced: bool = False

    def abort(self) -> None:
        self._stop("aborted")

    def redirect(self) -> None:
        self._stop("redirected")

    def _stop(self, reason: Interruption) -> None:
        if self.terminal is not None:
            # The answer is whole and only its connection is being closed; no abort waits for that.
            if reason == "aborted":
                self.scope.cancel()
            return
        self.stopped = reason
        if self.stream is None:
            self.scope.cancel()
        else:
            self.stream.cancel(reason)


async def call_model(run: RunRecord) -> Answer:
    """Ask the model once; announces the message and its growth, but not its end."""
    flight = _Flight()
    failure: Answer | None = None
    with run.signal.watching(flight.abort, flight.redirect):
        if flight.stopped is None:
            try:
                with flight.scope:
                    await _receive(run, flight)
            except Exception as exc:  # a hook or a stream may raise anything
                failure = _failed(run, flight, exc)
            except anyio.get_cancelled_exc_class():
                # The whole run is being cancelled: what has been shown stays in the history.
                if flight.announced:
                    run.keep(_interrupted(_partial(run, flight), "aborted"))
                raise
    answer = failure or Answer(_settled(run, flight))
    if run.signal.aborted:
        answer = Answer(_interrupted(answer.message, "aborted"))
    if not flight.announced:
        run.emit(MessageStart(answer.message))
    run.tally.add_answer(answer.message)
    _tell_who_answered(run, answer.message)
    return answer


def _tell_who_answered(run: RunRecord, message: AssistantMessage) -> None:
    """Say it when it is another model than before."""
    if message.stop_reason == "error" or not message.content or not message.model:
        return
    model = run.config.model
    asked, answered = f"{model.provider}:{model.id}", f"{message.provider}:{message.model}"
    stand_in = None if answered == asked else answered
    if stand_in != run.stand_in:
        run.stand_in = stand_in
        run.emit(ModelSwitched(asked, answered))


async def _receive(run: RunRecord, flight: _Flight) -> None:
    """Open the stream and pass its events on until the terminal one."""
    context = await _model_context(run)
    options = await _options(run)
    async with run.config.stream_fn(run.config.model, context, options) as stream:
        flight.stream = stream
        while batch := await stream.next_batch():
            for event in batch:
                if isinstance(event, StreamDone | StreamError | StreamCanceled):
                    flight.terminal = event
                elif isinstance(event, StreamStart):
                    flight.announced = True
                    run.emit(MessageStart(event.snapshot()))
                else:
                    run.emit(MessageUpdate(event))


async def _model_context(run: RunRecord) -> Context:
    messages = run.messages
    if run.config.transform_context is not None:
        # A copy: what it returns, or does to its argument, must not reach the history.
        messages = list(await run.config.transform_context(list(messages), run.signal))
    if violations := validate_transcript(messages):
        raise InvalidTranscript(violations)
    converted = run.config.convert_to_llm(messages)
    return Context(run.system_prompt or None, tuple(converted), run.snapshot.tools)


async def _options(run: RunRecord) -> StreamOptions:
    config = run.config
    if config.get_api_key is not None:
        key = await config.get_api_key(config.model.provider)
        if key is not None:
            return config.stream_options.model_copy(update={"api_key": SecretStr(key)})
    return config.stream_options


# -- what the call came to -------------------------------------------------------------------


def _settled(run: RunRecord, flight: _Flight) -> AssistantMessage:
    match flight.terminal:
        case StreamDone(message=message):
            return _complete(message, flight)
        case StreamError(message=message):
            return _broken(message, message.error_message or "the model call failed")
        case StreamCanceled(reason="redirected", message=message):
            return _interrupted(message, "redirected")
        case StreamCanceled(reason=reason, message=message) if reason in _ABORT_REASONS:
            return _interrupted(message, "aborted")
        case StreamCanceled(reason=reason, message=message):
            return _broken(message, message.error_message or f"the model call ended: {reason}")
        case None:
            return _without_terminal(run, flight)


def _without_terminal(run: RunRecord, flight: _Flight) -> AssistantMessage:
    if flight.stopped is not None:
        return _interrupted(_partial(run, flight), flight.stopped)
    return _broken(_partial(run, flight), "no_response")


def _partial(run: RunRecord, flight: _Flight) -> AssistantMessage:
    return blank_answer(run) if flight.stream is None else flight.stream.partial.snapshot()


def _complete(message: AssistantMessage, flight: _Flight) -> AssistantMessage:
    if not message.content and flight.stream is not None:
        streamed = flight.stream.partial.snapshot()
        message = message.model_copy(update={"content": streamed.content})
    if (
        message.stop_reason == "stop"
        and not get_tool_calls(message)
        and not get_text(message).strip()
    ):
        notice = [*message.content, TextContent(text=_EMPTY_NOTICE)]
        return _broken(message.model_copy(update={"content": notice}), EMPTY_RESPONSE)
    return message


def _broken(message: AssistantMessage, error: str) -> AssistantMessage:
    return message.model_copy(
        update={
            "content": _without_calls(message),
            "stop_reason": "error",
            "error_message": error,
        }
    )


def _interrupted(message: AssistantMessage, reason: Interruption) -> AssistantMessage:
    return message.model_copy(
        update={
            "content": _without_calls(message),
            "stop_reason": reason,
            "error_message": None,
            "error": None,
        }
    )


def _without_calls(message: AssistantMessage) -> list[object]:
    # Calls of an answer that did not end well are never run, so they would stay without results.
    return [block for block in message.content if not isinstance(block, ToolCall)]


def _failed(run: RunRecord, flight: _Flight, exc: Exception) -> Answer:
    partial = _partial(run, flight)
    if isinstance(exc, InvalidTranscript):
        return Answer(_broken(partial, str(exc)), exc.code)
    if not isinstance(exc, AIError | LemonError):
        log.exception("model_call.crashed", provider=run.config.model.provider)
    text = str(exc) if isinstance(exc, AIError | LemonError) else f"{type(exc).__name__}: {exc}"
    return Answer(_broken(partial, text))


def blank_answer(run: RunRecord) -> AssistantMessage:
    """An answer of the configured model that says nothing yet."""
    model = run.config.model
    return AssistantMessage(api=model.api, provider=model.provider, model=model.id)
