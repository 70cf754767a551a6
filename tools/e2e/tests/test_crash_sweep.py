"""`//tools/e2e:crash_sweep`: a conversation that is killed at every step and gone on with.

Router and gateway run as they do in the server, in one process with gRPC between them on a Unix
socket and SQLite on disk, and once more as two processes. One is killed by SIGKILL at a point, the
next one on the same home goes on, and then the store and the log of executions must agree
(`tools.e2e.sweep.verdict`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import pytest

from tools.e2e.sweep.conversation import MESSAGES, STOPPED
from tools.e2e.sweep.node import Nodes, Role, nodes
from tools.e2e.sweep.points import is_commit
from tools.e2e.sweep.sweep import (
    NotReached,
    Swept,
    counted,
    kill_at_each,
    share,
    swept,
    swept_apart,
)

PARTS: Final = 4
"""Each sweeps its share of the points; Bazel runs them side by side, chosen by the names below."""

IN_FULL_QUEUE: Final = "event: run run_later run_phase_changed queued_in_session"
"""One run is going on, three wait, one was merged and one was steered in: the most that a process
finds after a crash here."""


every_part = pytest.mark.parametrize(
    "part", range(PARTS), ids=[f"part_{part + 1}_of_{PARTS}" for part in range(PARTS)]
)


@pytest.fixture(scope="module", name="forked")
def _forked() -> Iterator[Nodes]:
    with nodes() as found:
        yield found


async def test_without_a_crash_every_message_has_its_fate(forked: Nodes) -> None:
    """The sums of the conversation; and a second recording names the same points as the first."""
    expected = {message.label: message.fate for message in MESSAGES}
    first, second = await swept(forked), await swept(forked)
    assert first.fates == second.fates == expected
    assert sorted(first.points) == sorted(second.points)
    victims: tuple[Role, ...] = ("router", "gateway")
    for victim in victims:
        assert (await swept_apart(forked, victim)).fates == expected


async def test_a_point_that_is_never_reached_without_a_crash_is_a_fault(forked: Nodes) -> None:
    with pytest.raises(NotReached, match="no such point"):
        await swept(forked, "no such point")


@pytest.mark.behaviour("lemon_router.39")
@every_part
async def test_after_a_crash_at_any_point_every_message_has_one_end(
    part: int, forked: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specification lemon_router 11.39: router and gateway die together."""
    points = (await swept(forked)).points
    with capsys.disabled():
        await _sweep("the server", points, part, lambda point: swept(forked, point))


@pytest.mark.behaviour("lemon_router.39")
@every_part
async def test_after_a_second_crash_on_the_way_up_every_message_has_one_end(
    part: int, forked: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specification lemon_router 11.39, for the process that recovers."""
    points = (await swept(forked, IN_FULL_QUEUE)).points
    # Then it only hears new messages, like a process that never crashed.
    news = next(number for number, point in enumerate(points) if STOPPED.run_id in point)
    with capsys.disabled():
        await _sweep(
            "the server on its way up again",
            points[:news],
            part,
            lambda point: swept(forked, IN_FULL_QUEUE, point),
        )


@pytest.mark.behaviour("lemon_router.39")
@every_part
async def test_a_router_that_dies_alone_loses_no_run(
    part: int, forked: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specification lemon_router 11.39: kill the router in every admission state.

    What it decides is in its commits, all of which are swept. Most of its events are those of the
    gateway, passed on: of these every fourth is swept.
    """
    points = (await swept_apart(forked, "router")).points
    with capsys.disabled():
        await _sweep(
            "the router alone",
            points,
            part,
            lambda point: swept_apart(forked, "router", point),
            every=4,
        )


@pytest.mark.behaviour("lemon_router.40")
@every_part
async def test_after_a_gateway_dies_alone_the_router_goes_on(
    part: int, forked: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specification lemon_router 11.39 and 11.40: the run that was going on is `run_lost`."""
    points = (await swept_apart(forked, "gateway")).points
    with capsys.disabled():
        await _sweep(
            "the gateway alone", points, part, lambda point: swept_apart(forked, "gateway", point)
        )


async def _sweep(
    victim: str,
    points: Sequence[str],
    part: int,
    kill: Callable[[str], Awaitable[Swept]],
    *,
    every: int = 1,
) -> None:
    """Kill at this part's share of all commits and of every `every`th event; says how many.

    Every crash is tried, whatever came of those before it.
    """
    chosen = [point for point in points if is_commit(point)]
    # In the order of their names: that of a recording is not the same each time.
    chosen += sorted(point for point in points if not is_commit(point))[::every]
    mine = share(chosen, part, PARTS)
    faults, fates = await kill_at_each(mine, kill)
    ends = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    print(f"\n{victim}, part {part + 1} of {PARTS}: swept {counted(mine)}")
    print(f"  of {counted(chosen)} chosen, of {counted(points)} recorded")
    print(f"  messages: {ends}; {len(faults)} faults")
    assert not faults, "\n".join(faults)
