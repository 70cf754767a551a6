"""Converters: both directions together are the identity, and nothing odd gets in or out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb
from lemon_core import bridges, events
from lemon_core.events import Event
from lemon_core.messages import InboundMessage
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.rpc import commands, inbound, router_messages, run_events, snapshots
from lemon_core.rpc.fields import InvalidContext, UnsupportedContract, canonical_image
from lemon_core.rpc.wire_json import InvalidMessage, NotJson
from lemon_core.runs import (
    ExecutionCommand,
    Image,
    InvalidCommand,
    MissingContext,
    MissingConversationKey,
    RunRequest,
)
from lemon_core.store.wrappers import UNSET, SessionSettings
from lemon_core.tests.rpc import samples, values

NOW = 1_000


def sent(message: Any) -> Any:
    """`message` after its journey."""
    return type(message).FromString(message.SerializeToString())


def ordered(value: object) -> object:
    """`value` with the order of keys, which equality of maps ignores."""
    if isinstance(value, dict):
        return [(key, ordered(item)) for key, item in value.items()]
    return [ordered(item) for item in value] if isinstance(value, list) else value


@given(values.commands())
def test_a_command_arrives_as_it_was(command: ExecutionCommand) -> None:
    """Specification lemon_gateway 5.1: integers and key order survive."""
    message = sent(commands.command_to_message(command))
    arrived = commands.command_from_message(message, now_ms=NOW)
    assert arrived == command
    assert ordered(arrived.meta) == ordered(command.meta)
    assert arrived.digest() == command.digest()


@given(values.requests)
def test_a_request_arrives_as_it_was(request: RunRequest) -> None:
    message = sent(commands.run_request_to_message(request))
    assert commands.run_request_from_message(message, now_ms=NOW) == request


@given(values.run_events())
def test_an_event_arrives_as_it_was(event: Event) -> None:
    message = sent(run_events.event_to_message(values.RUN, event))
    arrived = run_events.event_from_message(message)
    assert arrived == event
    assert type(arrived.payload) is type(event.payload)
    names = ("event_seq", "engine_event_seq", "chat_state_change")
    for meta in (dict(arrived.meta), dict(event.meta)):
        assert ordered({k: v for k, v in meta.items() if k not in names}) == ordered(
            {k: v for k, v in event.meta.items() if k not in names}
        )


@given(values.snapshots())
def test_a_snapshot_arrives_as_it_was(snapshot: bridges.RunSnapshot) -> None:
    message = sent(snapshots.snapshot_to_message(snapshot))
    assert snapshots.snapshot_from_message(message) == snapshot
    lean = snapshots.snapshot_to_message(snapshot, lean=True)
    assert (lean.accumulated_text, list(lean.actions)) == ("", [])


Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]


@given(
    st.one_of(
        values.receipts,
        values.results,
        values.steers,
        values.healths,
        values.run_infos,
        values.session_infos,
        values.sessions,
        values.inbounds,
        values.settings,
    )
)
def test_answers_arrive_as_they_were(answer: object) -> None:
    converters: dict[type, Pair] = {
        bridges.SubmitReceipt: (commands.receipt_to_message, commands.receipt_from_message),
        bridges.SubmitResult: (
            commands.submit_result_to_message,
            commands.submit_result_from_message,
        ),
        bridges.SteerOutcome: (
            commands.steer_outcome_to_message,
            commands.steer_outcome_from_message,
        ),
        bridges.HealthReport: (snapshots.health_to_message, snapshots.health_from_message),
        RunInfo: (router_messages.run_info_to_message, router_messages.run_info_from_message),
        SessionInfo: (
            router_messages.session_info_to_message,
            router_messages.session_info_from_message,
        ),
        SessionView: (router_messages.session_to_message, router_messages.session_from_message),
        InboundMessage: (inbound.inbound_to_message, inbound.inbound_from_message),
        SessionSettings: (
            router_messages.settings_to_message,
            router_messages.settings_from_message,
        ),
    }
    write, read = converters[type(answer)]
    message = write(answer)
    assert read(sent(message)) == answer
    if isinstance(answer, bridges.HealthReport):
        assert message.ok is answer.ok


@given(st.lists(values.pendings, max_size=3))
def test_questions_arrive_as_they_were(pending: list[events.PendingApproval]) -> None:
    message = router_messages.approvals_to_message(pending)
    assert router_messages.approvals_from_message(sent(message)) == pending


@pytest.mark.parametrize("model", [UNSET, None, "m"])
@pytest.mark.parametrize("level", [UNSET, None, "low"])
def test_a_patch_tells_leave_it_from_take_it_back(model: Any, level: Any) -> None:
    message = router_messages.patch_to_message("s", model, level)
    assert router_messages.patch_from_message(sent(message)) == (model, level)


@pytest.mark.parametrize("state", ["queued", "waiting_lock", "starting", "running", "terminal"])
def test_run_states_have_their_enum_values(state: bridges.RunState) -> None:
    assert snapshots.run_state_from_message(snapshots.run_state_to_message(state)) == state


def test_a_failed_action_stays_failed() -> None:
    """Specification lemon_gateway 1.2: `ok=False` never becomes None."""
    action = events.Action(id="a", kind="tool", title="t")
    for ok in (False, None, True):
        payload = events.EngineAction(action=action, ok=ok)
        message = run_events.event_to_message("r", Event("engine_action", 1, payload, {}))
        arrived = run_events.event_from_message(sent(message)).payload
        assert isinstance(arrived, events.EngineAction)
        assert arrived.ok is ok


# --- strict on the way in ---


@pytest.fixture(scope="module")
def message() -> pb.ExecutionCommand:
    return commands.command_to_message(samples.command("run_1"))


def changed(message: pb.ExecutionCommand, **fields: object) -> pb.ExecutionCommand:
    copy = pb.ExecutionCommand()
    copy.CopyFrom(message)
    for name, value in fields.items():
        if value is None:
            copy.ClearField(name)
        else:
            setattr(copy, name, value)
    return copy


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"run_id": None}, InvalidMessage, "run_id"),
        ({"session_key": None}, InvalidMessage, "session_key"),
        ({"conversation_key": None}, MissingConversationKey, "conversation key"),
        ({"execution_context": None}, MissingContext, "execution context"),
        ({"meta_json": b"{"}, InvalidMessage, "meta_json"),
        ({"meta_json": b"[]"}, InvalidMessage, "meta_json"),
        ({"meta_json": b'{"a": NaN}'}, InvalidMessage, "meta_json"),
        ({"meta_json": b"\xff\xfe"}, InvalidMessage, "meta_json"),
        ({"tool_policy_json": b"nonsense"}, InvalidMessage, "tool_policy_json"),
        ({"tool_policy_json": b'{"allow": 3}'}, InvalidMessage, "tool_policy_json"),
        ({"tool_policy_json": b"null"}, InvalidMessage, "tool_policy_json"),
        ({"contract_version": None}, UnsupportedContract, "contract_version"),
        ({"contract_version": 2}, UnsupportedContract, "contract_version"),
    ],
)
def test_a_bad_command_is_refused_naming_its_field(
    message: pb.ExecutionCommand,
    fields: dict[str, object],
    error: type[Exception],
    named: str,
) -> None:
    """Specification lemon_gateway 5.3, the status mapping."""
    with pytest.raises(error, match=named):
        commands.command_from_message(changed(message, **fields), now_ms=NOW)
    if error is not UnsupportedContract:
        assert issubclass(error, InvalidCommand)


def test_bad_parts_of_a_command_are_refused(message: pb.ExecutionCommand) -> None:
    image = changed(message)
    image.images.add(data=b"", mime_type="image/png")
    resume = changed(message)
    resume.resume.engine = "lemon"
    key = changed(message)
    key.conversation_key.resume.SetInParent()
    for bad, named in ((image, r"images\[0\]"), (resume, "resume"), (key, "conversation_key")):
        with pytest.raises(InvalidMessage, match=named):
            commands.command_from_message(bad, now_ms=NOW)


def test_a_bad_context_is_refused_with_its_own_code(message: pb.ExecutionCommand) -> None:
    """Specification lemon_gateway 13.24: tampered digest, other run, other node, other version."""
    wire = json.loads(message.execution_context.wire_json)
    tampered = changed(message)
    tampered.execution_context.wire_json = json.dumps({**wire, "digest": "0" * 64}).encode()
    version = changed(message)
    version.execution_context.version = 2
    other_run = changed(message, run_id="run_of_another")
    for bad, code in (
        (tampered, "digest_mismatch"),
        (version, "unsupported_version"),
        (other_run, "run_mismatch"),
    ):
        with pytest.raises(InvalidContext) as caught:
            commands.command_from_message(bad, now_ms=NOW)
        assert caught.value.rejected.code == code
    with pytest.raises(InvalidContext, match="workspace_escape"):
        commands.command_from_message(message, now_ms=NOW, allowed_roots=("/nowhere",))
    tampered.execution_context.wire_json = b"{"
    with pytest.raises(InvalidMessage, match="wire_json"):
        commands.command_from_message(tampered, now_ms=NOW)


def test_unknown_enum_values_are_refused_where_they_matter() -> None:
    with pytest.raises(InvalidMessage, match="mode"):
        commands.steer_mode_from_message(pb.STEER_MODE_UNSPECIFIED)
    with pytest.raises(InvalidMessage, match="status"):
        commands.submit_result_from_message(router_pb.SubmitResult())
    request = router_pb.RunRequest(run_id="r", contract_version=1)
    assert commands.run_request_from_message(request, now_ms=NOW).queue_mode == "collect"
    odd = router_pb.RunRequest.FromString(request.SerializeToString() + bytes([6 << 3, 99]))
    with pytest.raises(InvalidMessage, match="queue_mode"):
        commands.run_request_from_message(odd, now_ms=NOW)


def test_bad_events_are_refused_naming_their_field() -> None:
    for bad, named in (
        (pb.RunEvent(run_id="r"), "payload"),
        (pb.RunEvent(run_id="r", delta=pb.Delta(text="x")), "delta.seq"),
        (pb.RunEvent(run_id="r", run_completed=pb.RunCompleted()), "completed"),
        (pb.RunEvent(run_id="r", engine_event=pb.EngineEvent(payload_json=b"x")), "payload_json"),
        (
            pb.RunEvent(run_id="r", engine_completed=pb.Completion(error_json=b"[1]")),
            "error_json",
        ),
        (
            pb.RunEvent(run_id="r", engine_action=pb.EngineAction(action=pb.Action(kind="x"))),
            "engine_action.action.kind",
        ),
    ):
        with pytest.raises(InvalidMessage, match=named):
            run_events.event_from_message(bad)
    with pytest.raises(InvalidMessage, match=r"snapshot\.terminal"):
        snapshots.snapshot_from_message(pb.RunSnapshot(state=pb.RUN_STATE_TERMINAL))


# --- strict on the way out ---


class Deep:
    @staticmethod
    def nested(levels: int) -> dict[str, object]:
        value: dict[str, object] = {}
        for _ in range(levels):
            value = {"a": value}
        return value


@pytest.mark.parametrize(
    "value",
    [
        {"a": object()},
        {"a": math.nan},
        {"a": [math.inf]},
        {"a": {1: "key is no text"}},
        {"a": b"bytes"},
        {"a": {"set"}},
        {"a": "\ud800"},
        {"\ud800": 1},
        Deep.nested(150),
    ],
)
def test_what_is_not_json_does_not_leave(value: dict[str, object]) -> None:
    """Specification lemon_gateway 5.1."""
    with pytest.raises(NotJson, match="meta_json"):
        run_events.event_to_message("r", Event("note", 1, {}, value))
    request = RunRequest(run_id="r", meta=value)
    with pytest.raises(InvalidCommand, match="meta_json"):
        commands.run_request_to_message(request)


def test_a_request_without_a_run_id_does_not_leave() -> None:
    with pytest.raises(InvalidMessage, match="run_id"):
        commands.run_request_to_message(RunRequest())


def test_images_travel_as_bytes_and_come_back_in_plain_base64() -> None:
    wrapped = Image(data="aGVs\nbG8=\n", mime_type="image/png")
    assert canonical_image(wrapped) == Image(data="aGVsbG8=", mime_type="image/png")
    plain = canonical_image(wrapped)
    assert canonical_image(plain) is plain
    for data in ("not base64!", "\n"):
        with pytest.raises(InvalidMessage, match="images"):
            canonical_image(Image(data=data, mime_type="image/png"))


def test_a_payload_that_is_no_model_travels_plainly() -> None:
    odd = Event("delta", 1, {"unexpected": True}, {"event_seq": 3})
    message = run_events.event_to_message("r", odd)
    assert message.WhichOneof("payload") == "plain"
    assert run_events.event_from_message(sent(message)) == odd


def test_maps_that_go_out_together_are_written_once_and_never_mixed_up() -> None:
    """What is equal is not always the same JSON: 1 and True are, in Python."""
    known = run_events.KnownMaps()
    session = "agent:a:main"
    assert known.dump({}, "f") == b"{}"
    first = known.dump({"session_key": session, "n": 1}, "f")
    assert known.dump({"session_key": session, "n": 1}, "f") is first
    assert known.dump({"session_key": session, "n": True}, "f") == (
        b'{"session_key":"agent:a:main","n":true}'
    )
    assert known.dump({"session_key": session}, "f") == b'{"session_key":"agent:a:main"}'
    assert known.dump({"other": session}, "f") == b'{"other":"agent:a:main"}'
    assert known.dump({"other": None}, "f") == b'{"other":null}'
    assert known.dump({"more": None}, "f") == b'{"more":null}'
