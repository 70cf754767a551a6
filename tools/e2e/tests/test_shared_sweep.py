"""`//tools/e2e:shared_sweep`: one of two routers on a PostgreSQL store dies at each of its commits.

The other one was there all the time and goes on with the conversation; the gateway lives on. Then
the store and the log of executions must agree, as in the sweep on SQLite: nothing is lost, nothing
runs twice, all in order, and one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lemon_core.testing.postgres import PostgresServer, postgres_server
from tools.e2e.sweep.conversation import MESSAGES
from tools.e2e.sweep.node import Nodes, nodes
from tools.e2e.sweep.points import is_commit
from tools.e2e.sweep.sweep import counted, kill_at_each, swept_shared


@pytest.fixture(scope="module", name="forked")
def _forked() -> Iterator[Nodes]:
    with nodes() as found:
        yield found


@pytest.fixture(scope="module", name="postgres")
def _postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.mark.behaviour("lemon_router.110", "lemon_router.39")
async def test_after_a_router_died_at_any_commit_the_other_one_goes_on(
    forked: Nodes, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specification lemon_router 9 and 11.39, ruling 16."""
    whole = await swept_shared(forked, postgres.fresh_url())
    assert whole.fates == {message.label: message.fate for message in MESSAGES}
    points = [point for point in whole.points if is_commit(point)]
    faults, fates = await kill_at_each(
        points, lambda point: swept_shared(forked, postgres.fresh_url(), point)
    )
    ends = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    with capsys.disabled():
        print(f"\none of two routers: swept {counted(points)} of {counted(whole.points)}")
        print(f"  messages: {ends}; {len(faults)} faults")
    assert not faults, "\n".join(faults)
