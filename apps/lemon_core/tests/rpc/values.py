"""Hypothesis strategies for everything that travels."""

from __future__ import annotations

import base64
from typing import get_args

from hypothesis import strategies as st

from lemon_core import bridges, events
from lemon_core.events import Event
from lemon_core.messages import InboundMessage, MessageText, Peer, Sender
from lemon_core.resume import ConversationKey, ResumeToken
from lemon_core.router_views import RunInfo, SessionInfo, SessionView
from lemon_core.runs import ExecutionCommand, Image, Lane, QueueMode, RunRequest
from lemon_core.store.wrappers import SessionSettings
from lemon_core.tests.policies import contexts, policies

RUN = "run_1"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
maybe = st.none() | texts
times = st.integers(0, 2**53)
numbers = st.integers(-(2**70), 2**70)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_maps = st.dictionaries(texts, json_values, max_size=4)
maybe_map = st.none() | json_maps
tokens = st.builds(ResumeToken, engine=words, value=words)
maybe_token = st.none() | tokens
bools = st.none() | st.booleans()

images = st.builds(
    Image,
    data=st.binary(min_size=1, max_size=9).map(lambda raw: base64.b64encode(raw).decode()),
    mime_type=words,
)
conversations: st.SearchStrategy[ConversationKey] = st.one_of(
    st.tuples(st.just("session"), words), st.tuples(st.just("resume"), words, words)
)


@st.composite
def commands(draw: st.DrawFn) -> ExecutionCommand:
    """A command whose context was made for its run."""
    context = draw(contexts())
    return ExecutionCommand(
        run_id=context.run_id,
        session_key=draw(words),
        prompt=draw(texts),
        conversation_key=draw(conversations),
        execution_context=context,
        images=tuple(draw(st.lists(images, max_size=2))),
        cwd=draw(maybe),
        resume=draw(maybe_token),
        lane=draw(st.sampled_from(get_args(Lane))),
        tool_policy=draw(st.none() | policies),
        meta=draw(json_maps),
    )


requests = st.builds(
    RunRequest,
    origin=words,
    session_key=st.none() | words,
    agent_id=words,
    prompt=texts,
    queue_mode=st.sampled_from(get_args(QueueMode)),
    model=st.none() | words,
    images=st.lists(images, max_size=2).map(tuple),
    resume=maybe_token,
    meta=json_maps,
    cwd=maybe,
    tool_policy=st.none() | policies,
    execution_context=st.none() | contexts(),
    run_id=words,
)

completions = st.builds(
    events.Completion,
    ok=st.booleans(),
    answer=maybe,
    error=maybe | json_maps,
    engine=words,
    resume=maybe_token,
    usage=maybe_map,
    run_id=maybe,
    session_key=maybe,
    meta=maybe_map,
)
pendings = st.builds(
    events.PendingApproval,
    id=texts,
    tool=texts,
    run_id=maybe,
    session_id=maybe,
    session_key=maybe,
    agent_id=maybe,
    action=maybe_map,
    rationale=maybe,
    requested_at_ms=st.none() | times,
    expires_at_ms=st.none() | times,
    decisions=st.none() | st.lists(texts, max_size=2),
)
inbounds = st.builds(
    InboundMessage,
    channel_id=words,
    account_id=words,
    peer=st.builds(
        Peer, kind=st.sampled_from(["dm", "group", "channel"]), id=words, thread_id=maybe
    ),
    sender=st.none() | st.builds(Sender, id=words, username=maybe, display_name=maybe, bot=bools),
    message=st.builds(
        MessageText, id=maybe, text=texts, timestamp=st.none() | times, reply_to_id=maybe
    ),
    raw=json_values,
    meta=json_maps,
)
settings = st.builds(SessionSettings, model=maybe, thinking_level=maybe)
run_ids = st.sampled_from([RUN, "run_other"])

PAYLOADS: dict[str, st.SearchStrategy[object]] = {
    "run_started": st.builds(
        events.RunStarted,
        run_id=run_ids,
        session_key=maybe,
        engine=texts,
        model=maybe,
        provider=maybe,
        thinking_level=maybe,
    ),
    "delta": st.builds(
        events.Delta,
        run_id=run_ids,
        seq=st.integers(1, 2**60),
        text=texts,
        ts_ms=st.none() | times,
        meta=maybe_map,
    ),
    "engine_started": st.builds(
        events.EngineStarted,
        engine=texts,
        resume=maybe_token,
        title=maybe,
        meta=maybe_map,
        run_id=maybe,
        session_key=maybe,
    ),
    "engine_action": st.builds(
        events.EngineAction,
        action=st.builds(
            events.Action,
            id=texts,
            kind=st.sampled_from(get_args(events.ActionKind)),
            title=texts,
            detail=maybe_map,
        ),
        engine=texts,
        phase=st.sampled_from(get_args(events.ActionPhase)),
        ok=bools,
        message=maybe,
        level=maybe,
    ),
    "engine_completed": completions,
    "run_completed": st.builds(
        events.RunCompleted, completed=completions, duration_ms=st.none() | times
    ),
    "run_failed": st.builds(events.RunFailed, run_id=run_ids, reason=texts, session_key=maybe),
    "run_absorbed": st.builds(events.RunAbsorbed, run_id=run_ids, absorbed_by=texts, mode=texts),
    "run_phase_changed": st.builds(
        events.RunPhaseChanged,
        run_id=run_ids,
        phase=texts,
        source=texts,
        session_key=maybe,
        conversation_key=maybe,
        previous_phase=maybe,
        at=st.none() | times,
    ),
    "approval_requested": st.builds(events.ApprovalRequested, approval_id=texts, pending=pendings),
    "approval_resolved": st.builds(
        events.ApprovalResolved,
        approval_id=texts,
        decision=texts,
        pending=st.none() | pendings,
        reason=maybe,
    ),
    "engine_event": json_values,
    "task_started": json_values,
    "plain": json_values,
}


@st.composite
def run_events(draw: st.DrawFn) -> Event:
    """An event of a run, of any type."""
    kind = draw(st.sampled_from(sorted(PAYLOADS)))
    meta = dict(draw(json_maps))
    meta.pop("chat_state_change", None)
    for name in ("event_seq", "engine_event_seq"):
        seq = draw(st.none() | st.integers(1, 2**60))
        if seq is not None:
            meta[name] = seq
    if kind == "run_completed":
        change = draw(st.sampled_from([None, "none", "put", "delete"]))
        if change is not None:
            meta["chat_state_change"] = change
    return Event(kind, draw(times), draw(PAYLOADS[kind]), meta)


actions = st.builds(
    bridges.ActionState,
    id=texts,
    kind=texts,
    title=texts,
    phase=texts,
    ok=bools,
    detail=maybe_map,
)


@st.composite
def snapshots(draw: st.DrawFn) -> bridges.RunSnapshot:
    """A snapshot in any state."""
    state = draw(st.sampled_from(get_args(bridges.RunState)))
    over = state == "terminal"
    return bridges.RunSnapshot(
        run_id=draw(texts),
        session_key=draw(texts),
        state=state,
        stream_epoch=draw(texts),
        phase=draw(texts),
        last_event_seq=draw(times),
        last_delta_seq=draw(times),
        accumulated_text=draw(texts),
        resume=draw(maybe_token),
        actions=tuple(draw(st.lists(actions, max_size=2))),
        applied_steers=tuple(draw(st.lists(texts, max_size=2))),
        terminal=draw(completions) if over else None,
        duration_ms=draw(st.none() | times) if over else None,
        started_at_ms=draw(st.none() | times),
        open_approvals=tuple(draw(st.lists(pendings, max_size=2))),
    )


receipts = st.builds(
    bridges.SubmitReceipt,
    run_id=texts,
    status=st.sampled_from(get_args(bridges.ReceiptStatus)),
    node_id=texts,
    stream_epoch=texts,
)
results = st.builds(
    bridges.SubmitResult,
    status=st.sampled_from(get_args(bridges.SubmitStatus)),
    run_id=maybe,
    reason=maybe,
    duplicate=st.booleans(),
    detail=maybe_map,
)
steers = st.builds(
    bridges.SteerOutcome,
    submission_run_id=texts,
    mode=st.sampled_from(get_args(bridges.SteerMode)),
    accepted=st.booleans(),
    reason=maybe,
)
healths = st.builds(
    bridges.HealthReport,
    app=texts,
    timestamp=texts,
    checks=st.lists(
        st.builds(
            bridges.HealthCheck,
            name=texts,
            ok=st.booleans(),
            duration_ms=st.floats(0, 1e6),
            detail=maybe_map,
            error=maybe,
        ),
        max_size=2,
    ).map(tuple),
    node_id=texts,
    stream_epoch=texts,
    bus_id=texts,
)
run_infos = st.builds(
    RunInfo,
    run_id=texts,
    session_key=texts,
    state=texts,
    agent_id=texts,
    origin=texts,
    created_at_ms=times,
    updated_at_ms=times,
    phase=maybe,
    prompt=maybe,
    model=maybe,
    node_id=maybe,
    absorbed_by=maybe,
    completion=st.none() | completions,
    duration_ms=st.none() | times,
)
session_infos = st.builds(
    SessionInfo,
    session_key=texts,
    agent_id=texts,
    origin=maybe,
    active_run_id=maybe,
    queued_count=st.integers(0, 2**32 - 1),
    run_count=st.integers(0, 2**32 - 1),
    created_at_ms=st.none() | times,
    updated_at_ms=st.none() | times,
)
sessions = st.builds(
    SessionView,
    info=session_infos,
    model=maybe,
    thinking_level=maybe,
    runs=st.lists(run_infos, max_size=2).map(tuple),
)
