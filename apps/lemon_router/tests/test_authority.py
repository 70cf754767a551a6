"""Whose authority a run has, and how much of it (specification lemon_router 3.1 and 3.2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.bindings import BindingResolver
from lemon_core.config.gateway import GatewaySection
from lemon_core.execution_context import ExecutionContext, Principal
from lemon_core.messages import InboundMessage
from lemon_core.paths import PathSettings
from lemon_core.store import PolicyStore
from lemon_core.tool_policy import ToolPolicy
from lemon_router.inbound import Inbound, run_id_of
from lemon_router.policy import Caller, fold
from lemon_router.tests.rig import SESSION, Rig, rig

pytestmark = pytest.mark.anyio

TOOLS = ("bash", "read", "write")
NODE = Caller(id="tok", principal=Principal(kind="node", id="tok"), admin=False, confined=True)

policies = st.builds(
    lambda allow, deny, mode, limit: ToolPolicy.parse(
        {
            "allow": allow,
            "deny": deny,
            "approvals": {} if mode is None else {"bash": mode},
            "max_file_size": limit,
        }
    ),
    st.one_of(st.just("all"), st.lists(st.sampled_from(TOOLS), unique=True)),
    st.lists(st.sampled_from(TOOLS), unique=True),
    st.sampled_from([None, "always", "dangerous", "never"]),
    st.one_of(st.none(), st.integers(1, 100)),
)


def anonymous(policy: ToolPolicy) -> ToolPolicy:
    return policy.model_copy(update={"profile": None})


@pytest.mark.behaviour("lemon_router.7")
@given(st.lists(policies, max_size=5), st.randoms())
def test_no_layer_widens_another_in_any_order(layers: list[ToolPolicy], random: object) -> None:
    whole = fold(layers)
    for tool in TOOLS:
        if whole.allowed(tool):
            assert all(layer.allowed(tool) for layer in layers)
        for layer in layers:
            if layer.requires_approval(tool):
                assert whole.requires_approval(tool)
    sizes = [layer.max_file_size for layer in layers if layer.max_file_size is not None]
    assert whole.max_file_size == min(sizes, default=None)
    shuffled = list(layers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a Random
    assert anonymous(fold(shuffled)) == anonymous(whole)
    assert anonymous(fold([*layers, *layers])) == anonymous(whole)


async def context_of(r: Rig, run_id: str, **fields: object) -> ExecutionContext:
    result = await r.submit(run_id, **fields)
    assert result.status == "accepted", result
    context = (await r.engine.wait_submitted(run_id)).command.execution_context
    assert context is not None
    return context


@pytest.mark.behaviour("lemon_router.7")
async def test_an_operator_layer_cannot_widen_and_garbage_refuses(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        stored = PolicyStore(r.store)
        await stored.put("session", {"deny": ["bash"]}, SESSION)
        await stored.put("runtime", {"allow": "all"})
        assert not (await context_of(r, "run_1")).capabilities.allowed("bash")
        await r.store.put("runtime_policy", "global", {"alow": []})
        refused = await r.submit("run_2", session_key="agent:default:main:sub:x")
        assert (refused.status, refused.reason) == ("rejected", "policy_unreadable")
        bad = await r.submit("run_3", tool_policy={"approvals": {"bash": "maybe"}})
        assert bad.reason == "invalid_tool_policy"
        assert bad.detail is not None
        assert bad.detail["path"] == "approvals.bash"


@pytest.mark.behaviour("lemon_router.7")
@pytest.mark.parametrize(("kind", "asks"), [("group", True), ("channel", True), ("dm", False)])
async def test_where_many_write_changes_have_to_be_approved(
    kind: str, asks: bool, tmp_path: Path
) -> None:
    async with rig(tmp_path) as r:
        await PolicyStore(r.store).put("channel", {"deny": ["patch"]}, "telegram")
        await r.router.handle_inbound(message(kind=kind))
        (run_id,) = [record.run_id for record in r.router.live_records()]
        run = await r.engine.wait_submitted(run_id)
        policy = run.command.tool_policy
        assert policy is not None
        for tool in ("bash", "execute_code", "write", "edit", "hashline_edit"):
            assert (policy.approval_mode(tool) == "always") is asks
        assert not policy.allowed("patch")
        assert policy.approval_mode("read") == "default"


# Follow-ups and children


FOLLOWUPS: list[dict[str, object]] = [
    {"task_auto_followup": True},
    {"delegated_auto_followup": True},
    {"async_followups": [{"source": "task"}]},
    {"goal_continuation": True},
]


@pytest.mark.behaviour("lemon_router.8")
@pytest.mark.parametrize("meta", FOLLOWUPS)
async def test_a_followup_needs_a_context_that_fits(
    meta: dict[str, object], tmp_path: Path
) -> None:
    async with rig(tmp_path) as r:
        await PolicyStore(r.store).put("session", {"deny": ["bash"]}, SESSION)
        parent = await context_of(r, "run_1")

        async def reason(**fields: object) -> str | None:
            return (await r.submit("run_x", meta=meta, **fields)).reason

        assert await reason() == "context_required"
        stale = parent.model_copy(
            update={"validity": parent.validity.model_copy(update={"expires_at_ms": 1})}
        )
        assert await reason(execution_context=stale) == "context_invalid"
        other = "agent:default:main:sub:x"
        assert await reason(execution_context=parent, session_key=other) == "context_invalid"
        theirs = await r.router.submit(
            {"prompt": "x", "meta": meta, "execution_context": parent}, NODE
        )
        assert theirs.reason == "context_invalid"
        mcp = {**meta, "mcp_endpoints": ["http://127.0.0.1:1/mcp"]}
        granted = await r.submit("run_x", meta=mcp, execution_context=parent)
        assert granted.reason == "mcp_origin_not_granted"
        assert await r.router.admission("run_x") is None
        # A fitting one gets what its parent has, and never more.
        await PolicyStore(r.store).delete("session", SESSION)
        r.engine.complete("run_1")
        child = await context_of(
            r, "run_2", meta=meta, execution_context=parent, tool_policy={"deny": ["write"]}
        )
        assert child.lineage.parent_run_id == "run_1"
        assert child.lineage.depth == 1
        assert [child.capabilities.allowed(tool) for tool in TOOLS] == [False, True, False]


async def test_a_context_from_outside_opens_no_other_directory(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        parent = await context_of(r, "run_1")
        forged = parent.model_copy(
            update={
                "principal": NODE.principal,
                "workspace": parent.workspace.model_copy(update={"cwd": "/", "roots": ("/",)}),
            }
        )
        refused = await r.router.submit({"prompt": "x", "execution_context": forged}, NODE)
        assert refused.reason == "workspace_escape"


async def test_limits_come_from_configuration_and_are_tightened_by_requests(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, config={"runtime": {"budget_defaults": {"max_children": 3}}}) as r:
        asked: dict[str, object] = {"limits": {"max_children": 9, "max_tokens": 500}}
        limits = (await context_of(r, "run_1", meta=asked)).limits
        assert (limits.max_children, limits.max_tokens) == (3, 500)


async def test_a_session_without_an_earlier_run_continues_as_system(tmp_path: Path) -> None:
    """Ruling 18: under the session's stored layers, never with more."""
    async with rig(tmp_path) as r:
        await PolicyStore(r.store).put("session", {"deny": ["bash"]}, SESSION)
        found = await r.router.session_context(SESSION)
        assert found.context.principal.kind == "system"
        assert not found.context.capabilities.allowed("bash")
        assert found.mcp_origins == ()
        newest = await context_of(r, "run_1", session_key=SESSION)
        assert (await r.router.session_context(SESSION)).context == newest
        r.engine.complete("run_1")
        await r.router.drained()
        assert (await r.router.session_context(SESSION)).context == newest


# Channels


def message(
    *,
    kind: str = "dm",
    sender: str = "7",
    name: str = "Ada",
    number: str | None = "m1",
    meta: dict[str, object] | None = None,
    text: str = "hi",
    peer: str = "7",
) -> InboundMessage:
    return InboundMessage.model_validate(
        {
            "channel_id": "telegram",
            "account_id": "bot",
            "peer": {"kind": kind, "id": peer},
            "sender": {"id": sender, "display_name": name},
            "message": {"id": number, "text": text},
            "meta": meta or {},
        }
    )


async def test_a_message_becomes_one_run_however_often_it_arrives(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        first = await r.router.handle_inbound(message())
        again = await r.router.handle_inbound(message())
        assert (first.status, first.duplicate, again.duplicate) == ("accepted", False, True)
        assert first.run_id == again.run_id == run_id_of(message())
        run = await r.engine.wait_submitted(str(first.run_id))
        assert run.command.session_key == "agent:default:telegram:bot:dm:7"
        context = run.command.execution_context
        assert context is not None
        assert context.principal == Principal(kind="user", id="telegram:bot:7", display="Ada")
        assert context.provenance.untrusted_input
        assert (context.provenance.channel_id, context.provenance.peer_id) == ("telegram", "7")
        assert run.command.meta["user_msg_id"] == "m1"
        other = await r.router.handle_inbound(message(number="m2"))
        assert not other.duplicate
        assert ("lemon.channels.inbound", {"channel_id": "telegram"}) in r.seen.emitted


async def test_what_is_wrong_with_a_message_is_an_answer(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert (await r.router.handle_inbound(message(text=" "))).reason == "empty_prompt"
        refused = await r.router.handle_inbound(message(peer="a:b"))
        assert (refused.status, refused.reason) == ("rejected", "invalid_session_key")
        node = Caller(id="t", principal=NODE.principal, origins=frozenset({"node"}))
        assert (await r.router.handle_inbound(message(), node)).reason == "origin_not_allowed"


@pytest.mark.behaviour("lemon_router.107")
async def test_a_name_that_anybody_can_set_opens_nothing(tmp_path: Path) -> None:
    """Field report: a stranger with the owner's display name."""
    async with rig(tmp_path) as r:
        owner = await r.router.handle_inbound(message(sender="7", name="Ada", peer="7"))
        stranger = await r.router.handle_inbound(message(sender="8", name="Ada", peer="8"))
        runs = [await r.engine.wait_submitted(str(x.run_id)) for x in (owner, stranger)]
        keys = {run.command.session_key for run in runs}
        assert keys == {"agent:default:telegram:bot:dm:7", "agent:default:telegram:bot:dm:8"}
        contexts = [run.command.execution_context for run in runs]
        assert len({c.principal.id for c in contexts if c is not None}) == 2


BOUND: dict[str, object] = {
    "profiles": {"work": {}},
    "gateway": {
        "projects": {"site": {"root": "~/site"}},
        "bindings": [
            {
                "transport": "telegram",
                "chat_id": 7,
                "agent_id": "work",
                "project": "site",
                "queue_mode": "followup",
            }
        ],
    },
}


@pytest.mark.behaviour("lemon_router.106")
async def test_a_conversation_behind_a_binding_can_be_stopped(tmp_path: Path) -> None:
    """Field report: stop looks for the run under another conversation key."""
    (tmp_path / "site").mkdir()
    async with rig(tmp_path, config=BOUND) as r:
        first = await r.router.handle_inbound(message())
        await r.engine.wait_submitted(str(first.run_id))
        queued = await r.router.handle_inbound(message(number="m2"))
        assert queued.detail is not None
        assert queued.detail["disposition"] == "queued"
        run = r.engine.runs[str(first.run_id)]
        assert run.command.cwd == str(tmp_path / "site")
        bindings = BindingResolver.of(
            GatewaySection.model_validate(BOUND["gateway"]), paths=PathSettings(tmp_path)
        )
        key = Inbound(bindings).session_key(message(number="stop"))
        assert key == run.command.session_key == "agent:work:telegram:bot:dm:7"
        await r.router.abort_session(key)
        await r.clock.wait_for_sleepers(1)
        assert r.engine.cancelled == [(first.run_id, "user_requested")]
        r.engine.complete(str(first.run_id), ok=False, error="user_requested")
        await r.router.drained()
        assert r.engine.submitted == [first.run_id]
