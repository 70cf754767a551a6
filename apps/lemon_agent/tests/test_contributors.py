from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from lemon_agent.contributors import ContributionRequest, Contributors, Section, split
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

REQUEST = ContributionRequest(query="hi", session_scope="subagent")


@dataclass
class Says:
    """Answers what it is given; what is callable is called."""

    answer: Any
    budget: int | None = None
    asked: list[ContributionRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.budget is not None:
            self.timeout_ms: Callable[[ContributionRequest], int] = lambda _: self.budget or 0

    async def contribute(self, request: ContributionRequest) -> Any:
        self.asked.append(request)
        if callable(self.answer):
            return await self.answer()
        return self.answer


async def bodies(contributors: Contributors) -> list[tuple[str, str]]:
    with anyio.fail_after(5):
        return [(s.contributor, s.body) for s in await contributors.collect(REQUEST)]


def registered(clock: FakeClock | None = None, **says: Any) -> Contributors:
    contributors = Contributors(clock or FakeClock())
    for name, one in says.items():
        contributors.register(name, one if hasattr(one, "contribute") else Says(one))
    return contributors


async def test_sections_come_in_order_with_the_name_of_their_contributor() -> None:
    first = Says([Section("t", "one"), Section("t", "two", "user_message")])
    contributors = registered(a=first, b=Section("t", "three"), c=None)
    found = await contributors.collect(REQUEST)
    assert [(s.contributor, s.body) for s in found] == [("a", "one"), ("a", "two"), ("b", "three")]
    assert first.asked == [REQUEST]
    system, user_message = split(found)
    assert [s.body for s in system] == ["one", "three"]
    assert [s.body for s in user_message] == ["two"]
    contributors.unregister("a")
    assert await bodies(contributors) == [("b", "three")]
    assert await Contributors().collect(REQUEST) == []


@pytest.mark.behaviour("lemon_agent.16")
async def test_who_raises_cancels_or_is_badly_shaped_costs_the_others_nothing() -> None:
    async def raises() -> None:
        raise RuntimeError("broken")

    async def cancels() -> None:
        raise asyncio.CancelledError

    contributors = registered(
        raises=Says(raises),
        cancels=Says(cancels),
        text="not a section",
        shapes=[
            Section("", "no title"),
            Section("t", "  "),
            Section("t", 7),  # type: ignore[arg-type]
            Section("t", "nowhere", "footer"),  # type: ignore[arg-type]
            {"title": "t", "body": "b"},
            Section("t", "the sound one"),
        ],
        good=Section("t", "good"),
    )
    assert await bodies(contributors) == [("shapes", "the sound one"), ("good", "good")]


@pytest.mark.behaviour("lemon_agent.16")
@pytest.mark.parametrize(("budget", "waited"), [(None, 250), (700, 700), (9_999, 3_000), (-5, 1)])
async def test_who_hangs_is_left_out_when_its_time_is_up(budget: int | None, waited: int) -> None:
    clock, inside = FakeClock(), anyio.Event()

    async def hang() -> None:
        inside.set()
        await anyio.sleep_forever()

    contributors = registered(clock, hangs=Says(hang, budget), good=Section("t", "good"))
    found: list[Sequence[Section]] = []

    async def collect() -> None:
        found.append(await contributors.collect(REQUEST))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect)
            await inside.wait()
            await clock.wait_for_sleepers(1)
            await clock.advance(waited - 1)
            assert not found
            await clock.advance(1)
    assert [s.body for s in found[0]] == ["good"]


@pytest.mark.behaviour("lemon_agent.16")
async def test_a_budget_that_nobody_says_in_time_is_the_default() -> None:
    clock, release = FakeClock(), threading.Event()
    cold = Says(Section("t", "cold"), budget=1)
    cold.timeout_ms = lambda _: 1 if release.wait(5) else 2
    contributors = registered(clock, cold=cold, good=Section("t", "good"))
    found: list[Sequence[Section]] = []

    async def collect() -> None:
        found.append(await contributors.collect(REQUEST))

    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collect)
                await clock.wait_for_sleepers(1)
                await clock.advance(50)
    finally:
        release.set()
    assert [s.body for s in found[0]] == ["cold", "good"]


@pytest.mark.behaviour("lemon_agent.16")
async def test_too_much_is_cut_after_the_sections_that_fit() -> None:
    contributors = registered(
        many=[Section("t", str(n)) for n in range(10)],
        large=[Section("t", "x" * 16_000), Section("t", "é" * 300), Section("t", "small")],
    )
    found = await bodies(contributors)
    assert [body for name, body in found if name == "many"] == [str(n) for n in range(8)]
    assert [len(body) for name, body in found if name == "large"] == [16_000]
