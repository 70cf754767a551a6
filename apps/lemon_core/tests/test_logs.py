"""Log lines (specification lemon_core 12)."""

from __future__ import annotations

import io
import json
import logging

import pytest

from lemon_core.logs import StructlogFormatter, configure, get_logger
from lemon_core.tests.processes import python, read_line


def test_a_json_line_holds_event_fields_level_and_logger() -> None:
    out = io.StringIO()
    configure("info", form="json", stream=out)
    log = get_logger("lemon_gateway.lock").bind(run_id="run_1")
    log.warning("engine_lock.over_age", age_ms=5)
    line = json.loads(out.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "engine_lock.over_age",
        "level": "warning",
        "logger": "lemon_gateway.lock",
        "run_id": "run_1",
        "age_ms": 5,
    }


def test_a_console_line_is_readable_and_uncoloured_off_a_terminal() -> None:
    out = io.StringIO()
    configure("info", stream=out)
    get_logger("x").info("run.done", ok=True)
    line = out.getvalue()
    assert "run.done" in line
    assert "ok=True" in line
    assert "\x1b" not in line


def test_a_plain_line_is_the_one_that_structlog_gives() -> None:
    record = logging.makeLogRecord({"name": "lemon.a.b", "levelname": "WARNING", "msg": "it.was"})
    record.lemon_fields = {"z": 1.5, "ok": None, "text": "a b", "name": "x", "q": '"it"', "l": []}
    formatter = StructlogFormatter("console", colors=False)
    plain, rendered = formatter.format(record), formatter.rendered(record)
    assert plain.partition(" ")[2] == rendered.partition(" ")[2]
    assert plain.partition(" ")[0].endswith("Z")


def test_an_exception_comes_with_its_traceback_and_without_local_values() -> None:
    for form in ("console", "json"):
        out = io.StringIO()
        configure("error", form=form, stream=out)
        password = "hunter2-" + form
        try:
            raise ValueError("what happened")
        except ValueError:
            get_logger("x").exception("it.failed")
        assert "what happened" in out.getvalue()
        assert password not in out.getvalue()


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["d", "i", "w", "e"]),
        ("info", ["i", "w", "e"]),
        ("warning", ["w", "e"]),
        ("error", ["e"]),
        ("loud", ["w", "e"]),
    ],
)
def test_levels(level: str, expected: list[str]) -> None:
    out = io.StringIO()
    configure(level, form="json", stream=out)
    log = get_logger("x")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == expected


def test_the_last_configuration_wins() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", stream=first)
    configure("info", stream=second)
    get_logger("x").info("once")
    assert (first.getvalue(), second.getvalue().count("once")) == ("", 1)


def test_nothing_is_imported_before_the_first_visible_line() -> None:
    """structlog costs more than most commands may take to start."""
    script = (
        "import sys\n"
        "from lemon_core.logs import configure, get_logger\n"
        "configure('warning'); get_logger('x').info('hidden')\n"
        "print('structlog' in sys.modules, flush=True)\n"
    )
    with python(script) as process:
        assert read_line(process) == "False"
