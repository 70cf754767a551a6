"""The line below the input."""

from __future__ import annotations

from pathlib import Path

from lemon_cli.chat.conversation import Settings
from lemon_cli.chat.status import Stopwatch, duration, status_line
from lemon_cli.chat.transcript import Transcript


def test_it_says_for_how_long_a_run_works() -> None:
    now = 10.0
    transcript = Transcript(model="p:m")
    settings = Settings("agent:default:main:sub:w", None, None, None, Path("/"), Path("/"))
    watch = Stopwatch(lambda: now)
    assert status_line(transcript, settings, watch) == "p:m · w · /help"
    transcript.sent("run_1", "hi")
    assert status_line(transcript, settings, watch) == "0 s · p:m · w · Esc aborts"
    now = 75.5
    assert status_line(transcript, settings, watch).startswith("1 min 05 s · ")
    del transcript.turns["run_1"]
    transcript.sent("run_2", "again")
    assert status_line(transcript, settings, watch).startswith("0 s · ")
    assert duration(3600) == "60 min 00 s"
