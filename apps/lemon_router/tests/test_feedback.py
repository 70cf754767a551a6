"""What is recorded of how runs turned out, and what is made of it (specification 7)."""

from __future__ import annotations

import stat
from pathlib import Path

import anyio
import pytest

from lemon_core.bus import Bus
from lemon_core.config.model import LemonConfig
from lemon_core.events import Event
from lemon_core.paths import PathSettings
from lemon_core.store import StoreError
from lemon_core.system_events import RoutingFeedback
from lemon_core.testing import FakeClock
from lemon_router.feedback import TOPIC, FeedbackLog, enabled, feedback_file, recording
from lemon_router.feedback_report import KeyParts, parse_key
from lemon_router.feedback_view import FeedbackView, Span
from lemon_router.tests.forms import served

pytestmark = pytest.mark.anyio

CONTEXT = "code|-|/src/app"


def told(key: str, outcome: str = "success", duration_ms: int | None = 1_000) -> RoutingFeedback:
    return RoutingFeedback(fingerprint_key=key, outcome=outcome, duration_ms=duration_ms)


async def recorded(path: Path, *outcomes: RoutingFeedback) -> FeedbackView:
    """A file with these outcomes, and a view of it."""
    kept = FeedbackLog(path / "f.sqlite3", FakeClock())
    await kept.record(outcomes)
    await kept.close()
    return FeedbackView(path / "f.sqlite3", 5)


@pytest.mark.behaviour("lemon_router.38")
async def test_what_the_bus_tells_is_recorded_also_at_the_very_end(tmp_path: Path) -> None:
    config, paths = LemonConfig(), PathSettings(tmp_path)
    bus, clock = Bus(), FakeClock()
    file = feedback_file(config, paths)
    with anyio.fail_after(5):
        async with recording(config, paths, bus, clock, sweeping=False):
            assert not file.exists(), "opened before there was anything to keep"
            for payload in (told(f"{CONTEXT}|p|m"), told(f"{CONTEXT}|p|m", "failure", None)):
                bus.publish(TOPIC, Event("routing_feedback", clock.now_ms(), payload, {}))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = FeedbackView(file, 2).aggregate(f"{CONTEXT}|p|m")
    assert found is not None
    assert (found.total, found.outcomes) == (2, {"failure": 1, "success": 1})
    assert (found.success_rate, found.mean_duration_ms) == (0.5, 1_000)


@pytest.mark.behaviour("lemon_router.38")
async def test_a_file_that_cannot_be_written_fails_no_run(tmp_path: Path) -> None:
    config = LemonConfig.model_validate(
        {"router": {"routing_feedback": {"path": str(tmp_path / "no.db")}}}
    )
    (tmp_path / "no.db").mkdir()
    bus, clock = Bus(), FakeClock()
    with anyio.fail_after(5):
        async with recording(config, PathSettings(tmp_path), bus, clock, sweeping=True):
            bus.publish(TOPIC, Event("routing_feedback", 0, told(f"{CONTEXT}|p|m"), {}))
    with pytest.raises(StoreError):
        await FeedbackLog(tmp_path / "no.db", clock).record([told("k")])


@pytest.mark.behaviour("lemon_router.38")
@pytest.mark.parametrize(
    ("outcomes", "rate", "confidence"),
    [
        (["success"] * 4, None, "insufficient"),
        (["success"] * 2 + ["failure"] * 3, 0.4, "low"),
        (["success"] * 3 + ["partial"] * 3, 0.5, "medium"),
        (["success"] * 2 + ["unknown"], None, "insufficient"),
        (["success"] * 4 + ["aborted"], 0.8, "high"),
        (["success"] * 2 + ["failure"] * 4, 0.3333, "low"),
    ],
)
async def test_few_outcomes_say_nothing_and_more_say_how_sure_they_are(
    outcomes: list[str], rate: float | None, confidence: str, tmp_path: Path
) -> None:
    key = f"{CONTEXT}|p|m"
    view = await recorded(tmp_path, *(told(key, outcome) for outcome in outcomes))
    found = view.aggregate(key)
    assert found is not None
    assert (found.total, found.success_rate) == (len(outcomes), rate)
    assert found.confidence == confidence


@pytest.mark.behaviour("lemon_router.38")
async def test_the_best_model_counts_all_its_providers(tmp_path: Path) -> None:
    good = [told(f"{CONTEXT}|one|good")] * 3 + [told(f"{CONTEXT}|two|good")] * 3
    fair = [told(f"{CONTEXT}|one|fair")] * 9 + [told(f"{CONTEXT}|one|fair", "failure")]
    rare = [told(f"{CONTEXT}|one|rare")] * 4
    nameless = [told(f"{CONTEXT}|one|-")] * 50
    elsewhere = [told("code|-|/src/app2|one|fair", "success")] * 50
    view = await recorded(tmp_path, *good, *fair, *rare, *nameless, *elsewhere)
    assert view.best_model_for_context(CONTEXT) == "good"
    assert [(m.key, m.total, m.success_rate) for m in view.models(CONTEXT)] == [
        ("good", 6, 1.0),
        ("fair", 10, 0.9),
        ("rare", 4, None),
    ]
    assert view.best_model_for_context("chat|-|-") is None


@pytest.mark.behaviour("lemon_router.38")
async def test_a_model_that_never_succeeded_is_not_the_best(tmp_path: Path) -> None:
    view = await recorded(tmp_path, *[told(f"{CONTEXT}|one|bad", "failure")] * 9)
    assert view.best_model_for_context(CONTEXT) is None


@pytest.mark.behaviour("lemon_router.38")
async def test_percent_and_underscore_of_a_path_match_only_themselves(tmp_path: Path) -> None:
    odd, like = "code|-|/a_b%c", "code|-|/aXb/x/c"
    rows = [told(f"{odd}|p|mine")] * 5 + [told(f"{like}|p|other")] * 9
    view = await recorded(tmp_path, *rows, *[told("code|-|/a\\b|p|slashed")] * 5)
    assert view.best_model_for_context(odd) == "mine"
    assert view.best_model_for_context("code|-|/a\\b") == "slashed"
    assert view.best_model_for_context("%") is None


@pytest.mark.behaviour("lemon_router.38")
async def test_what_is_too_old_is_forgotten_every_hour(tmp_path: Path) -> None:
    config, paths = LemonConfig(), PathSettings(tmp_path)
    bus, clock = Bus(), FakeClock()
    view = FeedbackView(feedback_file(config, paths), 1)
    day = 86_400_000
    with anyio.fail_after(5):
        kept = FeedbackLog(view.path, clock)
        await kept.record([told("old")])
        await clock.advance(30 * day - 1_800_000)
        await kept.record([told("new")])
        await kept.close()
        async with recording(config, paths, bus, clock, sweeping=True):
            await clock.wait_for_sleepers()
            assert view.span().run_count == 2
            await clock.advance(3_600_000)
            await clock.wait_for_sleepers()
    newest = clock.now_ms() - 3_600_000
    assert view.span() == Span(1, 1, newest, newest)


async def test_keys_and_durations_that_make_no_sense_are_not_kept(tmp_path: Path) -> None:
    view = await recorded(tmp_path, told(""), told("x" * 3_000), told("k", duration_ms=-5))
    assert view.span().run_count == 1
    found = view.aggregate("k")
    assert found is not None
    assert found.mean_duration_ms is None


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("code|-|/a|p|m", KeyParts("code", "-", "/a", "p", "m")),
        ("code|read,write|/a|b|p|m", KeyParts("code", "read,write", "/a|b", "p", "m")),
        ("code|-|/a|p", None),
        ("code||/a|p|m", None),
        ("", None),
    ],
)
def test_a_key_is_taken_apart(key: str, parts: KeyParts | None) -> None:
    assert parse_key(key) == parts


def test_the_file_is_where_the_configuration_says(tmp_path: Path) -> None:
    paths = PathSettings(tmp_path)

    def where(**sections: object) -> Path:
        return feedback_file(LemonConfig.model_validate(sections), paths)

    assert where() == paths.store_dir / "routing_feedback.sqlite3"
    assert where(store={"path": "~/x/s.db"}) == tmp_path / "x" / "routing_feedback.sqlite3"
    given = {"routing_feedback": {"path": "~/y"}}
    assert where(router=given) == tmp_path / "y" / "routing_feedback.sqlite3"


@pytest.mark.parametrize(
    ("state", "subscribe", "kept"),
    [
        ("default-on", True, True),
        ("on", True, True),
        ("on", False, False),
        ("opt-in", True, False),
        ("off", True, False),
    ],
)
def test_outcomes_are_kept_as_the_feature_says(state: str, subscribe: bool, kept: bool) -> None:
    config = LemonConfig.model_validate(
        {
            "features": {"routing_feedback": state},
            "router": {"routing_feedback": {"subscribe": subscribe}},
        }
    )
    assert enabled(config) is kept


async def test_a_file_of_something_else_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "f.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match=r"f\.sqlite3"):
        FeedbackView(tmp_path / "f.sqlite3", 5).span()


async def test_a_running_router_keeps_outcomes() -> None:
    with anyio.fail_after(5):
        async with served() as s:
            file = feedback_file(s.runtime.config, s.paths)
            event = Event("routing_feedback", 0, told(f"{CONTEXT}|p|m"), {})
            s.runtime.bus.publish(TOPIC, event)
            while not file.exists() or not FeedbackView(file, 1).span().run_count:
                await anyio.lowlevel.checkpoint()
