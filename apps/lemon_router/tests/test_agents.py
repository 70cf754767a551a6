"""Writing to agents, finding their sessions, and naming their places (specification 7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from lemon_core.config.model import LemonConfig
from lemon_router.agents import AGENTS, Agents
from lemon_router.errors import Rejected
from lemon_router.inbox import Letter
from lemon_router.routes import InvalidTarget, Route, parse_route, route_of
from lemon_router.tests.forms import served
from lemon_router.tests.rig import Rig, rig

pytestmark = pytest.mark.anyio

CONFIG: dict[str, object] = {
    "profiles": {"default": {}, "coder": {"name": "Coder", "description": "Writes code."}}
}
CHAT = Route("telegram", "default", "dm", "42")
GROUP = Route("telegram", "work", "group", "-100", "7")
ROOM = Route("discord", "main", "channel", "9")


@dataclass
class World:
    """A router and its agents."""

    rig: Rig
    agents: Agents

    async def had_run(self, session_key: str) -> None:
        """A session that was used a moment later than all others."""
        await self.rig.clock.advance(1_000)
        run_id = f"run_{session_key}"
        await self.rig.runs.begin(run_id, b"digest", session_key=session_key)
        await self.rig.runs.finalize(
            run_id, {"completed": {"ok": True, "answer": "x"}, "session_key": session_key}
        )

    async def meta(self, run_id: str | None) -> dict[str, object]:
        assert run_id is not None
        await self.rig.engine.wait_submitted(run_id)
        return self.rig.engine.runs[run_id].command.meta


@asynccontextmanager
async def world(home: Path) -> AsyncIterator[World]:
    async with rig(home, config=CONFIG) as made:
        profiles = LemonConfig.model_validate(CONFIG).profiles
        yield World(made, Agents(made.router, made.store, made.runs, profiles, made.clock))


# Places


@pytest.mark.behaviour("lemon_router.37")
@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("tg:42", CHAT),
        ("telegram:42", CHAT),
        ("tg:work@-100/7", GROUP),
        ("TG:work@-100#7", GROUP),
        ("discord:main:channel:9", ROOM),
        ("Discord:main:channel:9/3", Route("discord", "main", "channel", "9", "3")),
        ({"chat_id": 42}, CHAT),
        ({"chatId": "-100", "topicId": 7, "accountId": "work"}, GROUP),
        ({"channelId": "discord", "accountId": "main", "peerKind": "channel", "peerId": 9}, ROOM),
        ({"channel_id": "telegram", "peer_id": "42"}, CHAT),
    ],
)
def test_a_place_is_read_in_every_form(target: object, route: Route) -> None:
    assert parse_route(target) == route
    # What is shown can be read again.
    assert parse_route(route.target) == route
    assert route_of(route.session_key("default")) == route


@pytest.mark.behaviour("lemon_router.37")
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (None, "missing_target"),
        (" ", "missing_target"),
        ({}, "missing_target"),
        ("nowhere", "invalid_target"),
        ("tg:", "invalid_target"),
        (17, "invalid_target"),
        ({"peer_id": "1"}, "missing_channel_id"),
        ({"channel_id": "discord"}, "missing_peer_id"),
        ("discord:main:herd:9", "invalid_peer_kind"),
        ({"channel_id": "discord", "peer_id": "a:b"}, "invalid_target"),
    ],
)
def test_what_is_no_place_is_told_apart(target: object, reason: str) -> None:
    with pytest.raises(InvalidTarget) as refused:
        parse_route(target)
    assert refused.value.reason == reason


# Endpoints


@pytest.mark.behaviour("lemon_router.37")
async def test_a_name_stands_for_a_place_of_its_agent(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        made = await w.agents.set_agent_endpoint("coder", " Ops Room! ", "tg:work@-100/7", "Alerts")
        assert (made.name, made.route, made.target) == ("ops-room-", GROUP, "tg:work@-100/7")
        assert made.session_key == "agent:coder:telegram:work:group:-100:thread:7"
        # An alias goes before every other reading, and one name may stand for what another does.
        named = await w.agents.set_agent_endpoint("coder", "tg:42", "OPS ROOM!")
        assert named.route == GROUP
        found = await w.agents.resolve_agent_session("coder", to="tg:42")
        assert found.route == GROUP
        # Another agent knows no such name.
        assert (await w.agents.resolve_agent_session("default", to="tg:42")).route == CHAT

        await w.rig.clock.advance(50)
        moved = await w.agents.set_agent_endpoint("coder", "ops room!", ROOM.target)
        assert (moved.id, moved.created_at_ms) == (made.id, made.created_at_ms)
        assert moved.updated_at_ms == made.updated_at_ms + 50
        names = [e.name for e in await w.agents.list_agent_endpoints("coder")]
        assert names == ["ops-room-", "tg:42"]
        assert await w.agents.list_agent_endpoints("default") == []
        assert await w.agents.delete_agent_endpoint("coder", "tg:42")
        assert not await w.agents.delete_agent_endpoint("coder", "tg:42")
        with pytest.raises(InvalidTarget) as refused:
            await w.agents.set_agent_endpoint("coder", " ", "tg:42")
        assert refused.value.reason == "invalid_name"


# Directory


@pytest.mark.behaviour("lemon_router.37")
async def test_active_sessions_come_first_and_then_the_one_used_last(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        at_room, at_chat = ROOM.session_key("coder"), CHAT.session_key("coder")
        await w.rig.submit("run_1", session_key="agent:default:main")
        for key in (at_chat, at_room, CHAT.session_key("default")):
            await w.had_run(key)
        sessions = await w.agents.list_agent_sessions()
        assert [s.session_key for s in sessions] == [
            "agent:default:main",
            CHAT.session_key("default"),
            at_room,
            at_chat,
        ]
        assert [s.active_run_id for s in sessions] == ["run_1", None, None, None]
        of_coder = await w.agents.list_agent_sessions("coder", limit=1)
        assert [s.session_key for s in of_coder] == [at_room]
        there = await w.agents.list_agent_sessions(to="tg:42")
        assert [s.agent_id for s in there] == ["default", "coder"]
        assert await w.agents.latest_session("coder", "tg:42") == at_chat
        assert await w.agents.latest_session("coder") == at_room
        assert await w.agents.latest_session("nobody") is None
        newest = await w.agents.latest_route_session("default")
        assert newest is not None
        assert newest.session_key == CHAT.session_key("default")


@pytest.mark.behaviour("lemon_router.37")
async def test_agents_and_places_are_counted_and_found(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for key in (ROOM.session_key("coder"), GROUP.session_key("coder")):
            await w.had_run(key)
        await w.had_run(GROUP.session_key("default"))
        await w.rig.submit("run_1", session_key="agent:coder:main", agent_id="coder")
        coder, default = await w.agents.list_agent_directory()
        assert (coder.agent_id, coder.name, coder.description) == (
            "coder",
            "Coder",
            "Writes code.",
        )
        assert (coder.session_count, coder.active_session_count, coder.route_count) == (3, 1, 2)
        assert (default.name, default.latest_session_key) == (
            "default",
            GROUP.session_key("default"),
        )
        targets = await w.agents.list_agent_targets()
        assert [(t.target, t.label, t.agent_ids) for t in targets] == [
            ("tg:work@-100/7", "-100 / 7", ("coder", "default")),
            ("discord:main:channel:9", "9", ("coder",)),
        ]
        for found in (
            await w.agents.list_agent_targets("DISCORD"),
            await w.agents.list_agent_targets(channel_id="discord"),
            await w.agents.list_agent_targets(account_id="main"),
            await w.agents.list_agent_targets("9", agent_id="coder", limit=5),
        ):
            assert [t.target for t in found] == ["discord:main:channel:9"]


# Inbox


@pytest.mark.behaviour("lemon_router.37")
async def test_latest_is_the_newest_session_then_the_place_then_main(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        resolve = w.agents.resolve_agent_session
        main = await resolve("coder")
        assert (main.session_key, main.resolved_from) == ("agent:coder:main", "main")
        placed = await resolve("coder", to="tg:42")
        assert (placed.session_key, placed.resolved_from) == (CHAT.session_key("coder"), "route")
        await w.had_run(CHAT.session_key("coder", sub_id="a"))
        await w.had_run(ROOM.session_key("coder"))
        newest = await resolve("coder")
        assert (newest.session_key, newest.route) == (ROOM.session_key("coder"), ROOM)
        there = await resolve("coder", to="tg:42")
        assert there.session_key == CHAT.session_key("coder", sub_id="a")
        assert there.route_session_key == CHAT.session_key("coder")


@pytest.mark.behaviour("lemon_router.37")
async def test_new_is_a_session_that_was_not_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        one = await w.agents.resolve_agent_session("coder", "new", "tg:42")
        other = await w.agents.resolve_agent_session("coder", "new", "tg:42")
        assert one.session_key.startswith(f"{CHAT.session_key('coder')}:sub:inbox_")
        assert one.session_key != other.session_key
        plain = await w.agents.resolve_agent_session("coder", "new")
        assert plain.session_key.startswith("agent:coder:main:sub:inbox_")


@pytest.mark.behaviour("lemon_router.37")
@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        ({"prompt": " "}, "empty_prompt", {}),
        ({"session": "newest"}, "invalid_session_selector", {}),
        ({"session": 7}, "invalid_session_selector", {}),
        ({"session": "agent:coder"}, "invalid_session_key", {}),
        (
            {"session": "agent:default:main"},
            "session_agent_mismatch",
            {"expected": "coder", "actual": "default"},
        ),
        (
            {"deliver_to": ["tg:1", "nowhere"]},
            "invalid_fanout_target",
            {"item": "nowhere", "reason": "invalid_target"},
        ),
        ({"to": {"channel_id": "discord"}}, "missing_peer_id", {}),
        ({"agent_id": "a:b"}, "unknown_agent_id", {}),
    ],
)
async def test_a_letter_that_goes_nowhere_is_refused(
    fields: dict[str, object], reason: str, detail: dict[str, object], tmp_path: Path
) -> None:
    async with world(tmp_path) as w:
        letter = Letter(**{"agent_id": "coder", "prompt": "hi", **fields})  # type: ignore[arg-type]
        with pytest.raises(Rejected) as refused:
            await w.agents.send_to_agent(letter)
        assert refused.value.reason == reason
        assert detail.items() <= refused.value.detail.items()
        assert w.rig.engine.submitted == []


@pytest.mark.behaviour("lemon_router.37")
async def test_a_letter_to_a_place_runs_there_and_tells_whom_it_is_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        sent = await w.agents.send_to_agent(
            Letter(
                "coder",
                "hi",
                to="tg:work@-100/7",
                deliver_to=("tg:42", {"chat_id": 42}, "tg:work@-100#7"),
                meta={"note": 1},
                source="test",
            )
        )
        assert (sent.submitted.status, sent.selector, sent.fanout_count) == (
            "accepted",
            "latest",
            1,
        )
        assert sent.session_key == GROUP.session_key("coder")
        meta = await w.meta(sent.run_id)
        peer = {"kind": "group", "id": "-100", "thread_id": "7"}
        assert (meta["note"], meta["origin"], meta["peer"]) == (1, "channel", peer)
        assert (meta["chat_id"], meta["topic_id"]) == (-100, 7)
        assert meta["channel_context"] == {
            "channel_id": "telegram",
            "account_id": "work",
            "peer": peer,
        }
        assert meta["fanout_routes"] == [
            {
                "channel_id": "telegram",
                "account_id": "default",
                "peer_kind": "dm",
                "peer_id": "42",
                "thread_id": None,
            }
        ]
        assert (meta["agent_inbox_message"], meta["agent_inbox_followup"]) == (True, True)
        assert meta["agent_inbox"] == {
            "source": "test",
            "selector": "latest",
            "resolved_from": "route",
            "resolved_session_key": sent.session_key,
            "route_session_key": sent.session_key,
            "target": "tg:work@-100/7",
            "queue_mode": "followup",
            "fanout_targets": ["tg:42"],
            "requested_at_ms": w.rig.clock.now_ms(),
        }


@pytest.mark.behaviour("lemon_router.37")
async def test_a_letter_without_a_place_comes_from_the_control_plane(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        sent = await w.agents.send_to_agent(
            Letter("coder", "hi", "agent:coder:main:sub:w", queue_mode="collect")
        )
        meta = await w.meta(sent.run_id)
        assert (meta["origin"], meta["agent_inbox_followup"]) == ("control_plane", False)
        assert sent.session_key == "agent:coder:main:sub:w"
        assert "channel_context" not in meta
        unknown = await w.agents.send_to_agent(Letter("nobody", "hi"))
        assert (unknown.submitted.status, unknown.submitted.reason) == (
            "rejected",
            "unknown_agent_id",
        )


async def test_a_server_offers_its_agents_to_other_apps() -> None:
    with anyio.fail_after(5):
        async with served() as s:
            agents = s.runtime.capabilities.get(AGENTS)
            assert isinstance(agents, Agents)
            sent = await agents.send_to_agent(Letter("default", "hi"))
            assert sent.run_id is not None
            await s.engine.wait_submitted(sent.run_id)
        assert s.runtime.capabilities.get(AGENTS) is None
