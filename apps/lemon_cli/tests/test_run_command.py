"""`lemon run` in the process (specification lemon_cli 1 and 2.3)."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from lemon_cli import cli
from lemon_cli.main import run
from lemon_cli.render import CREDENTIAL_HINT
from lemon_core.clock import SystemClock
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.runs import QUEUE_MODES, THINKING_LEVELS
from lemon_core.state_lock import hold_state_lock
from lemon_core.testing import temp_home

PROFILE = Profile(
    name="test",
    components=("lemon_cli.tests.fake_app:component",),
    commands={"lemon_cli": cli.COMMANDS},
)
DONE = {"completed": {"ok": True, "answer": "Hello there"}, "duration_ms": 3}
ANSWER = [
    ["run_started", {"run_id": "$run_id"}],
    ["delta", {"run_id": "$run_id", "seq": 1, "text": "Hello "}],
    ["delta", {"run_id": "$run_id", "seq": 2, "text": "there"}],
    ["run_completed", DONE],
]


@pytest.fixture
def paths() -> Iterator[PathSettings]:
    with temp_home() as paths:
        yield paths


def lemon(paths: PathSettings, *argv: str, script: object = ANSWER) -> int:
    environ = {
        "HOME": str(paths.home),
        "PATH": os.environ["PATH"],
        "FAKE_SCRIPT": json.dumps(script),
    }
    return run(argv, profile=PROFILE, environ=environ, cwd=paths.home)


@pytest.mark.behaviour("lemon_cli.25")
def test_the_answer_goes_to_stdout_and_the_session_to_stderr(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(paths, "run", "Say", "hello") == 0
    said = capsys.readouterr()
    assert said.out == "Hello there\n"
    assert said.err.startswith("lemon: session ")
    assert "--session" in said.err


def test_an_answer_that_was_not_streamed_is_printed_once(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(paths, "run", "hi", script=[["run_completed", DONE]]) == 0
    assert capsys.readouterr().out == "Hello there\n"


def test_tool_steps_are_lines_on_stderr(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    action = {"id": "tool_1", "kind": "command", "title": "`ls\x1b[2J -l`\nsecond"}
    script = [
        ["engine_action", {"action": action, "phase": "started"}],
        ["engine_action", {"action": action, "phase": "updated"}],
        ["engine_action", {"action": action, "phase": "completed", "ok": False, "message": "no"}],
        ["engine_action", {"action": {"id": "n", "kind": "note", "title": "a notice"}}],
        ["run_completed", DONE],
    ]
    assert lemon(paths, "run", "--session", "w", "hi", script=script) == 0
    assert capsys.readouterr().err.splitlines() == [
        "  ▸ `ls[2J -l` second",
        "  ✗ `ls[2J -l` second: no",
        "lemon: a notice",
    ]


@pytest.mark.behaviour("lemon_cli.2")
def test_json_is_one_event_per_line_and_ends_with_the_completion(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(paths, "run", "--json", "hi") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["type"] for row in rows] == ["run_started", "delta", "delta", "run_completed"]
    assert rows[-1]["payload"]["completed"]["answer"] == "Hello there"


@pytest.mark.behaviour("lemon_cli.26")
@pytest.mark.parametrize(
    ("session", "agent", "key"),
    [
        ("notes", (), "agent:default:main:sub:notes"),
        ("notes", ("--agent", "coder"), "agent:coder:main:sub:notes"),
        ("agent:coder:main", (), "agent:coder:main"),
    ],
)
def test_a_word_or_a_key_names_the_session(
    paths: PathSettings,
    capsys: pytest.CaptureFixture[str],
    session: str,
    agent: tuple[str, ...],
    key: str,
) -> None:
    script = [["run_completed", {"completed": {"ok": True, "answer": "$session_key $prompt"}}]]
    assert lemon(paths, "run", "--session", session, *agent, "hi", script=script) == 0
    assert capsys.readouterr().out == f"{key} hi\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("run",), "prompt is empty"),
        (("run", "  "), "prompt is empty"),
        (("run", "-"), "standard input is empty"),
        (("run", "--session", "agent:x:nowhere", "hi"), "--session"),
        (("run", "--session", "a b", "--agent", "x:y", "hi"), "--session"),
        (("run", "--session", "agent:a:main", "--agent", "b", "hi"), "belongs to agent 'a'"),
        (("run", "--thinking", "loud", "hi"), "--thinking"),
        (("run", "--cwd", "/does/not/exist", "hi"), "no such directory"),
        (("run", "--file", "missing.txt"), "--file missing.txt"),
        (("run", "--timeout", "0", "hi"), "--timeout"),
        (("run", "--nonsense", "hi"), "--nonsense"),
        (("rnu", "hi"), "did you mean 'run'?"),
    ],
)
def test_wrong_arguments_end_with_2_and_one_line(
    paths: PathSettings,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert lemon(paths, *argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    told = [line for line in said.err.splitlines() if not line.lower().startswith("usage: ")]
    assert len(told) == 1
    assert not paths.state_dir.exists(), "a refused command leaves nothing behind"


def test_the_help_names_all_modes_and_levels(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written down there, because the help of a command imports nothing heavy."""
    assert lemon(paths, "run", "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"is busy: {', '.join(QUEUE_MODES)}." in told
    assert f"to think: {', '.join(THINKING_LEVELS)}." in told


def test_prompts_come_from_stdin_and_files(
    paths: PathSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [["run_completed", {"completed": {"ok": True, "answer": "<$prompt>"}}]]
    monkeypatch.setattr(sys, "stdin", io.StringIO("from stdin"))
    assert lemon(paths, "run", "-", script=script) == 0
    assert capsys.readouterr().out == "<from stdin>\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("a change"))
    assert lemon(paths, "run", "review", "this:", "-", script=script) == 0
    assert capsys.readouterr().out == "<review this:\n\na change>\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert lemon(paths, "run", "review this:", "-", script=script) == 2
    assert "the standard input is empty" in capsys.readouterr().err
    (paths.home / "prompt.txt").write_text("from a file")
    assert lemon(paths, "run", "--file", "prompt.txt", script=script) == 0
    assert capsys.readouterr().out == "<from a file>\n"


def test_a_refused_key_names_what_to_do(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "assistant_error", "message": "no", "detail": {"category": "auth"}}
    script = [["run_completed", {"completed": {"ok": False, "error": error}}]]
    assert lemon(paths, "run", "hi", script=script) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"lemon: the run failed: no{CREDENTIAL_HINT}"


def test_piped_input_that_nobody_asked_for_is_named(
    paths: PathSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [["run_completed", {"completed": {"ok": True, "answer": "<$prompt>"}}]]
    read, write = os.pipe()
    with os.fdopen(read) as piped, os.fdopen(write, "w") as writer:
        monkeypatch.setattr(sys, "stdin", piped)
        assert lemon(paths, "run", "hi", script=script) == 0
        assert "standard input" not in capsys.readouterr().err
        writer.write("a log")
        writer.flush()
        assert lemon(paths, "run", "hi", script=script) == 0
        said = capsys.readouterr()
        assert (said.out, "lemon: standard input was not read" in said.err) == ("<hi>\n", True)
        writer.close()
        assert lemon(paths, "run", "hi", "-", script=script) == 0
        said = capsys.readouterr()
        assert (said.out, "was not read" in said.err) == ("<hi\n\na log>\n", False)


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (
            [["run_completed", {"completed": {"ok": False, "error": "lock_timeout"}}]],
            1,
            "lock_timeout",
        ),
        (
            [
                [
                    "run_completed",
                    {
                        "completed": {
                            "ok": False,
                            "error": {"code": "unknown_model", "message": "no model x"},
                        }
                    },
                ]
            ],
            2,
            "no model x",
        ),
        ({"refuse": "run_capacity_reached"}, 1, "refused because of run_capacity_reached"),
        ({"refuse": "unknown_agent_id"}, 2, "refused because of unknown_agent_id"),
    ],
)
def test_failures_have_their_code_and_a_reason(
    paths: PathSettings,
    capsys: pytest.CaptureFixture[str],
    script: object,
    code: int,
    words: str,
) -> None:
    assert lemon(paths, "run", "--session", "w", "hi", script=script) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.behaviour("lemon_cli.25")
def test_a_run_that_takes_too_long_is_aborted_with_124(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lemon(paths, "run", "--timeout", "0.05", "hi", script={"hang": True}) == 124
    assert capsys.readouterr().err.splitlines()[-1] == "lemon: timed out"


@pytest.mark.behaviour("lemon_cli.28", "lemon_core.48")
@pytest.mark.parametrize(
    ("text", "line"),
    [("[gateway\nmax_concurrent_runs = 2\n", 1), ("[gateway]\nmax_concurrent_runs = 'x'\n", 2)],
)
def test_malformed_toml_and_a_meaningless_value_end_with_1_naming_path_and_line(
    paths: PathSettings, capsys: pytest.CaptureFixture[str], text: str, line: int
) -> None:
    paths.state_dir.mkdir()
    paths.config_file.write_text(text)
    assert lemon(paths, "run", "--session", "w", "hi") == 1
    err = capsys.readouterr().err
    assert f"{paths.config_file}:{line}" in err


@pytest.mark.behaviour("lemon_cli.28", "lemon_core.48")
def test_an_unknown_key_warns_and_the_run_goes_on(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.state_dir.mkdir()
    paths.config_file.write_text("[gateway]\nmax_concurent_runs = 2\n")
    assert lemon(paths, "run", "--session", "w", "hi") == 0
    said = capsys.readouterr()
    assert "gateway.max_concurent_runs" in said.err
    assert said.out == "Hello there\n"


@pytest.mark.behaviour("lemon_cli.25")
def test_a_held_state_directory_is_waited_for_with_one_line(paths: PathSettings) -> None:
    async def hold_until_it_waits() -> None:
        async with hold_state_lock(paths.runtime_lock, "one_shot", SystemClock()):
            child = start_child(paths, "--session", "w", "hi", script=ANSWER)
            children.append(child)
            assert child.stderr is not None
            told.append(await anyio.to_thread.run_sync(child.stderr.readline))

    children: list[subprocess.Popen[str]] = []
    told: list[str] = []
    anyio.run(hold_until_it_waits)
    out, err = children[0].communicate(timeout=60)
    assert "waiting for another lemon run or lemon chat" in told[0]
    assert "lemon daemon starts a server" in told[0]
    assert (children[0].returncode, out, err) == (0, "Hello there\n", "")


def start_child(paths: PathSettings, *argv: str, script: object) -> subprocess.Popen[str]:
    code = (
        "import sys; from lemon_cli.main import main;"
        "from lemon_cli.tests.test_run_command import PROFILE; main(PROFILE, sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", *argv],
        env={
            "HOME": str(paths.home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FAKE_SCRIPT": json.dumps(script),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_aborts_the_run_with_130(paths: PathSettings) -> None:
    started = [["delta", {"run_id": "$run_id", "seq": 1, "text": "begun\n"}]]
    child = start_child(paths, "hi", script=started)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-1] == "lemon: interrupted"


def test_relative_directories_start_where_the_user_is(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    (paths.home / "project").mkdir()
    script = [["run_completed", {"completed": {"ok": True, "answer": "$cwd"}}]]
    assert lemon(paths, "run", "--cwd", "project", "hi", script=script) == 0
    assert Path(capsys.readouterr().out.strip()) == (paths.home / "project").resolve()
