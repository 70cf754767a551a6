"""Telemetry (specification lemon_core 12)."""

from __future__ import annotations

import logging

import pytest

from lemon_core.telemetry import Measurements, Metadata, Telemetry

Seen = list[tuple[str, Measurements, Metadata]]


@pytest.fixture
def seen() -> Seen:
    return []


def test_events_reach_the_handlers_of_their_prefix(seen: Seen) -> None:
    telemetry = Telemetry()
    telemetry.attach("lemon.run.", lambda *event: seen.append(event))
    telemetry.emit("lemon.run.start", {"ts_ms": 1}, {"run_id": "r"})
    telemetry.emit("lemon.cron.tick", {"job_count": 1})
    assert seen == [("lemon.run.start", {"ts_ms": 1}, {"run_id": "r"})]


def test_detaching_ends_it_and_may_be_repeated(seen: Seen) -> None:
    telemetry = Telemetry()
    detach = telemetry.attach("", lambda *event: seen.append(event))
    telemetry.emit("one")
    detach()
    detach()
    telemetry.emit("two")
    assert [name for name, _, _ in seen] == ["one"]


@pytest.mark.behaviour("lemon_core.37")
def test_a_raising_handler_is_logged_and_detached(
    seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry()
    calls = 0

    def broken(*_event: object) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("broken")

    telemetry.attach("", broken)
    telemetry.attach("", lambda *event: seen.append(event))
    with caplog.at_level(logging.ERROR, logger="lemon"):
        telemetry.emit("one")
        telemetry.emit("two")
    assert calls == 1
    assert [name for name, _, _ in seen] == ["one", "two"]
    assert [record.message for record in caplog.records] == ["telemetry.handler_detached"]


def test_a_span_tells_start_stop_and_duration(seen: Seen) -> None:
    telemetry = Telemetry()
    telemetry.attach("", lambda *event: seen.append(event))
    with telemetry.span("lemon.config.reload", {"reload_id": "1"}):
        assert [name for name, _, _ in seen] == ["lemon.config.reload.start"]
    assert seen[-1][0] == "lemon.config.reload.stop"
    assert seen[-1][1]["duration"] >= 0
    assert seen[-1][2] == {"reload_id": "1"}


def test_a_span_tells_an_exception_and_lets_it_through(seen: Seen) -> None:
    telemetry = Telemetry()
    telemetry.attach("", lambda *event: seen.append(event))
    with pytest.raises(KeyError), telemetry.span("work"):
        raise KeyError("x")
    assert [(name, meta.get("error")) for name, _, meta in seen] == [
        ("work.start", None),
        ("work.exception", "KeyError"),
    ]


def test_it_tells_whether_anybody_listens() -> None:
    telemetry = Telemetry()
    assert not telemetry.is_heard("lemon.run")
    detach = telemetry.attach("lemon.run.end", lambda *event: None)
    assert telemetry.is_heard("lemon.run")
    assert telemetry.is_heard("lemon.run.end.more")
    assert not telemetry.is_heard("lemon.config")
    detach()
    assert not telemetry.is_heard("lemon.run")
