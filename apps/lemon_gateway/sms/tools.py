"""The four tools with which a run uses the inbox. What they show was written by strangers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, assert_never

from lemon_agent import AgentTool, AgentToolResult, ToolCallContext
from lemon_agent.external_content import trust_metadata, wrap_external_content
from lemon_core.store import StoreError
from lemon_gateway.sms.inbox import (
    LIST_LIMIT,
    MAX_WAIT_MS,
    WAIT_MS,
    Code,
    Inbox,
    WaitFailure,
)
from lemon_gateway.sms.messages import MessageFilter, SmsMessage
from lemon_gateway.sms.pattern import MAX_PATTERN_CHARS
from lemon_gateway.sms.records import UNKNOWN_SESSION

GET_NUMBER: Final = "sms_get_inbox_number"
WAIT_FOR_CODE: Final = "sms_wait_for_code"
LIST_MESSAGES: Final = "sms_list_messages"
CLAIM_MESSAGE: Final = "sms_claim_message"
TOOL_NAMES: Final = (GET_NUMBER, WAIT_FOR_CODE, LIST_MESSAGES, CLAIM_MESSAGE)

MAX_LISTED: Final = 100
BODY_CHARS: Final = 200

_FILTER: Final[Mapping[str, object]] = {
    "to": {"type": "string", "description": "Only messages to this number."},
    "from_contains": {"type": "string", "description": "Only senders with this in them."},
    "body_contains": {"type": "string", "description": "Only texts with this in them."},
    "since_ms": {
        "type": "integer",
        "minimum": 0,
        "description": "Only messages from this time on, in milliseconds since 1970.",
    },
}
_FAILURES: Final[Mapping[WaitFailure, str]] = {
    "pattern_too_slow": "The regex takes too long on these messages: use a simpler one, or none.",
    "too_many_waiters": "Too many runs wait for messages now: try again in a minute.",
    "unavailable": "The inbox cannot be read now: try again in a minute.",
}


def sms_tools(inbox: Inbox, session_key: str) -> tuple[AgentTool, ...]:
    """The tools for the runs of one session."""
    tools = _SmsTools(inbox, session_key.strip() or UNKNOWN_SESSION)
    return (
        AgentTool(
            GET_NUMBER,
            "The phone number at which text messages (SMS) can be received.",
            _schema({}),
            _storing(tools.get_number),
        ),
        AgentTool(
            WAIT_FOR_CODE,
            "Wait for a text message with a verification code. An unclaimed message that is there "
            "already counts, the newest first. The message is claimed, so that no other run gets "
            "it; what this session claimed is in sms_list_messages with only_mine.",
            _schema(_WAIT),
            _storing(tools.wait_for_code),
        ),
        AgentTool(
            LIST_MESSAGES,
            "List received text messages, newest first.",
            _schema(_LIST),
            _storing(tools.list_messages),
        ),
        AgentTool(
            CLAIM_MESSAGE,
            "Claim a text message for this session, so that no other run uses its code.",
            _schema(
                {"message_sid": {"type": "string", "description": "As the list shows it."}},
                required=("message_sid",),
            ),
            _storing(tools.claim_message),
        ),
    )


_WAIT: Final[Mapping[str, object]] = {
    "timeout_ms": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_WAIT_MS,
        "description": f"How long to wait (default {WAIT_MS}).",
    },
    **_FILTER,
    "to": {"type": "string", "description": "The number it comes to (default: the inbox's)."},
    "regex": {
        "type": "string",
        "maxLength": MAX_PATTERN_CHARS,
        "description": "What the code looks like (default: 4 to 8 digits); all of the match is it.",
    },
    "claim": {"type": "boolean", "description": "Claim the message (default true)."},
}
_LIST: Final[Mapping[str, object]] = {
    **_FILTER,
    "include_claimed": {
        "type": "boolean",
        "description": "Also those that a session has claimed (default false).",
    },
    "only_mine": {"type": "boolean", "description": "Only those that this session has claimed."},
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_LISTED,
        "description": f"How many (default {LIST_LIMIT}).",
    },
}


class _SmsTools:
    def __init__(self, inbox: Inbox, session_key: str) -> None:
        self._inbox, self._session_key = inbox, session_key

    async def get_number(self, _: ToolCallContext) -> AgentToolResult:
        number = self._inbox.number
        if number is None:
            return _failed("No inbox number is configured (gateway.sms.inbox_number).")
        return AgentToolResult.of_text(number, details={"number": number})

    async def wait_for_code(self, call: ToolCallContext) -> AgentToolResult:
        params = call.params
        timeout_ms = params.get("timeout_ms", WAIT_MS)
        found = await self._inbox.wait_for_code(
            self._session_key,
            timeout_ms=timeout_ms,
            asks=_filter(params),
            pattern=params.get("regex"),
            claim=params.get("claim", True),
        )
        if isinstance(found, Code):
            return _code_result(found)
        if found == "timeout":
            text = f"No message with a code came within {timeout_ms} ms."
            return AgentToolResult.of_text(text, details={"timeout": True})
        return _failed(_FAILURES[found])

    async def list_messages(self, call: ToolCallContext) -> AgentToolResult:
        params = call.params
        only_mine = params.get("only_mine", False)
        found = await self._inbox.list_messages(
            _filter(params),
            include_claimed=only_mine or params.get("include_claimed", False),
            claimed_by=self._session_key if only_mine else None,
            limit=params.get("limit", LIST_LIMIT),
        )
        return _list_result(found)

    async def claim_message(self, call: ToolCallContext) -> AgentToolResult:
        sid = call.params["message_sid"].strip()
        outcome = await self._inbox.claim_message(self._session_key, sid)
        match outcome:
            case "ok":
                return AgentToolResult.of_text("Claimed.", details={"message_sid": sid})
            case "not_found":
                return _failed("There is no such message.")
            case "already_claimed":
                return _failed("Another session has claimed this message.")
            case _:
                assert_never(outcome)


def _code_result(found: Code) -> AgentToolResult:
    message = found.message
    lines = (
        f"code: {found.code}",
        f"message_sid: {message.message_sid}",
        f"received: {_time(message.received_at_ms)}",
    )
    details = {
        "code": found.code,
        "from": message.from_,
        "message_sid": message.message_sid,
        "received_at_ms": message.received_at_ms,
    }
    return _untrusted("\n".join(lines), details, sender=message.from_)


def _list_result(messages: Sequence[SmsMessage]) -> AgentToolResult:
    if not messages:
        return AgentToolResult.of_text("No messages.", details={"count": 0, "messages": []})
    lines = [f"{number}. {_line(message)}" for number, message in enumerate(messages, 1)]
    rows = [
        {
            "message_sid": message.message_sid,
            "from": message.from_,
            "to": message.to,
            "received_at_ms": message.received_at_ms,
            "codes": list(message.codes),
            "claimed": message.claimed_by is not None,
        }
        for message in messages
    ]
    return _untrusted("\n".join(lines), {"count": len(rows), "messages": rows})


def _line(message: SmsMessage) -> str:
    # One line each: a body with line ends could write further items of the list.
    body = " ".join(message.body.split())
    cut = f"{body[:BODY_CHARS]}…" if len(body) > BODY_CHARS else body
    facts = [_time(message.received_at_ms), f"from {' '.join(message.from_.split())}"]
    facts.append(f"sid {message.message_sid}")
    if message.claimed_by is not None:
        facts.append("claimed")
    return f"[{', '.join(facts)}] {cut}"


def _untrusted(
    text: str, details: Mapping[str, object], *, sender: str | None = None
) -> AgentToolResult:
    wrapped = wrap_external_content(text, "unknown", sender=sender)
    trust = trust_metadata("unknown", ("text",), warning_included=True)
    return AgentToolResult.of_text(wrapped, details={**details, **trust}, trust="untrusted")


def _failed(text: str) -> AgentToolResult:
    return AgentToolResult.of_text(text, details={"error": True}, is_error=True)


def _filter(params: Mapping[str, Any]) -> MessageFilter:
    return MessageFilter(
        to=(params.get("to") or "").strip() or None,
        from_contains=params.get("from_contains") or None,
        body_contains=params.get("body_contains") or None,
        since_ms=params.get("since_ms"),
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _schema(properties: Mapping[str, object], required: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _storing(
    work: Callable[[ToolCallContext], Awaitable[AgentToolResult]],
) -> Callable[[ToolCallContext], Awaitable[AgentToolResult]]:
    """`work`, with a store that does not answer as an error for the model."""

    async def execute(call: ToolCallContext) -> AgentToolResult:
        try:
            return await work(call)
        except StoreError:
            return _failed(_FAILURES["unavailable"])

    return execute
