"""Conversations that no longer fit (specification lemon_router 3.3 and 5.1)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import anyio
import pytest

from lemon_core.events import Completion
from lemon_core.resume import ChatState
from lemon_router.compaction import (
    FRESH_MS,
    TABLE,
    TRANSCRIPT_CHARS,
    CatalogWindows,
    Marker,
)
from lemon_router.tests.rig import SESSION, TOKEN, Rig, rig

pytestmark = pytest.mark.anyio

CHANNEL: dict[str, object] = {"origin": "channel"}
CONFIG: dict[str, object] = {"runtime": {"compaction": {"reserve_tokens": 200}}}


async def settled() -> None:
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


async def said(r: Rig, number: int, prompt: str, answer: str) -> None:
    summary = {
        "completed": {"ok": True, "answer": answer},
        "session_key": SESSION,
        "prompt": prompt,
    }
    await r.runs.begin(f"past_{number}", b"d", session_key=SESSION)
    await r.runs.finalize(f"past_{number}", summary)
    await r.clock.advance(1)


async def mark(r: Rig, *, age_ms: int | None = 0) -> Marker:
    set_at = None if age_ms is None else r.clock.now_ms() - age_ms
    marker = Marker("overflow", SESSION, set_at)
    await r.store.put(TABLE, SESSION, asdict(marker))
    return marker


async def prompt_of(r: Rig, run_id: str, **fields: object) -> str:
    result = await r.submit(run_id, **{"prompt": "go", **CHANNEL, **fields})
    assert result.status == "accepted", result
    run = await r.engine.wait_submitted(run_id)
    r.engine.complete(run_id)
    await r.router.drained()
    return run.command.prompt


@pytest.mark.behaviour("lemon_router.9")
async def test_the_next_message_of_a_channel_starts_afresh_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for number in range(10):
            await said(r, number, f"question {number}", f"answer {number}")
        state = ChatState(last_engine="lemon", last_resume_token=TOKEN.value)
        await r.chat_states.put(SESSION, state)
        await mark(r)
        meta = {"auto_resume": True}
        await r.submit("run_1", prompt="and now?", meta=meta, **CHANNEL)
        command = (await r.engine.wait_submitted("run_1")).command
        assert command.resume is None
        lines = command.prompt.splitlines()
        assert lines[2:-3] == [
            "<previous_conversation>",
            *(
                line
                for number in range(2, 10)
                for line in (f"User: question {number}", f"Assistant: answer {number}")
            ),
        ]
        assert lines[-3:] == ["</previous_conversation>", "", "User: and now?"]
        r.engine.complete("run_1")
        await r.router.drained()
        assert await r.store.load(TABLE, SESSION) is None
        assert await prompt_of(r, "run_2") == "go"


@pytest.mark.behaviour("lemon_router.9")
async def test_the_transcript_is_bounded_and_a_blank_message_says_continue(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        await said(r, 1, "x" * 20_000, "the end")
        await mark(r, age_ms=None)
        image = {"data": "aGk=", "mime_type": "image/png"}
        prompt = await prompt_of(r, "run_1", prompt=" ", images=[image])
        assert prompt.endswith("User: Continue.")
        inside = prompt.partition("<previous_conversation>\n")[2].partition("\n</previous")[0]
        assert len(inside) == TRANSCRIPT_CHARS
        assert inside.endswith("Assistant: the end")


@pytest.mark.behaviour("lemon_router.9")
@pytest.mark.parametrize("case", ["stale", "empty", "explicit", "origin", "refused"])
async def test_the_prompt_is_left_alone(case: str, tmp_path: Path) -> None:
    async with rig(tmp_path, limit=1) as r:
        if case != "empty":
            await said(r, 1, "question", "answer")
        await mark(r, age_ms=FRESH_MS + 1 if case == "stale" else 0)
        others: dict[str, dict[str, object]] = {
            "explicit": {"resume": TOKEN},
            "origin": {"origin": "control_plane"},
        }
        fields = others.get(case, {})
        if case == "refused":
            await r.submit("run_0", session_key="agent:default:main:sub:other")
            refused = await r.submit("run_1", **CHANNEL)
            assert refused.reason == "run_capacity_reached"
        else:
            assert await prompt_of(r, "run_1", **fields) == "go"
        left = await r.store.load(TABLE, SESSION)
        assert (left is None) is (case in {"stale", "empty"})


@pytest.mark.behaviour("lemon_router.9")
async def test_a_marker_that_cannot_be_read_leaves_the_prompt_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.store.put(TABLE, SESSION, {"nonsense": 1})
        assert await prompt_of(r, "run_1") == "go"


async def marker_after(r: Rig, end: dict[str, object], **fields: object) -> object:
    await r.submit("run_1", **{**CHANNEL, **fields})
    await r.engine.wait_submitted("run_1")
    r.engine.end("run_1", Completion.model_validate(end))
    await r.router.drained()
    return await r.store.load(TABLE, SESSION)


@pytest.mark.behaviour("lemon_router.27")
@pytest.mark.parametrize(
    ("end", "model", "tokens", "source"),
    [
        ({"ok": True, "usage": {"input": 300, "cache_read": 600}}, "m", 900, "usage"),
        ({"ok": True, "usage": {"input": 799}}, "m", None, None),
        ({"ok": True, "usage": {"input": 900}}, "unknown", None, None),
        ({"ok": True}, "m", 850, "char_estimate"),
        ({"ok": False, "usage": {"input": 900}}, "m", None, None),
    ],
    ids=["cached tokens", "below", "unknown model", "estimate", "not ok"],
)
async def test_a_run_near_its_window_leaves_a_marker(
    end: dict[str, object], model: str, tokens: int | None, source: str | None, tmp_path: Path
) -> None:
    async with rig(tmp_path, config=CONFIG) as r:
        found = await marker_after(r, end, model=model, prompt="x" * 850)
        if tokens is None:
            assert found is None
        else:
            assert found == asdict(
                Marker("near_limit", SESSION, r.clock.now_ms(), tokens, 800, 1_000, source)
            )


@pytest.mark.behaviour("lemon_router.27")
async def test_an_overflow_leaves_a_marker_and_other_origins_do_not(tmp_path: Path) -> None:
    overflow: dict[str, object] = {"ok": False, "error": "context_length_exceeded"}
    async with rig(tmp_path) as r:
        assert await marker_after(r, overflow) == asdict(
            Marker("overflow", SESSION, r.clock.now_ms())
        )
    async with rig(tmp_path) as r:
        assert await marker_after(r, overflow, origin="cron") is None
    off: dict[str, object] = {"runtime": {"compaction": {"enabled": False}}}
    async with rig(tmp_path, config=off) as r:
        assert await marker_after(r, overflow) is None


@pytest.mark.behaviour("lemon_router.27")
def test_the_window_of_a_model_is_found_as_it_is_written() -> None:
    windows = CatalogWindows()
    local = windows.window_of("smollm2-135m-instruct")
    assert local is not None
    assert windows.window_of("local:smollm2-135m-instruct") == local
    assert windows.window_of("vendor/smollm2-135m-instruct") == local
    assert windows.window_of("p:vendor/smollm2-135m-instruct") == local
    assert windows.window_of("no such model") is None
    assert windows.estimate("x" * 400) > 0
