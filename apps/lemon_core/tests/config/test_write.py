"""Writing edits of a configuration file (specification lemon_core 10.2, behaviour 33)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lemon_core.config.write import ConfigWriteError, Edit, edit_file, rewrite
from lemon_core.tests.config.homes import Home

MODEL = ("defaults", "model")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.behaviour("lemon_core.33")
def test_an_edit_keeps_every_other_byte_and_the_mode(home: Home) -> None:
    home.write("# mine\n[defaults]\nmodel = 'a'  # told\nprovider='b'\n")
    home.global_file.chmod(0o640)
    assert edit_file(home.global_file, [Edit(MODEL, '"c"')])
    assert (
        home.global_file.read_text() == "# mine\n[defaults]\nmodel = \"c\"  # told\nprovider='b'\n"
    )
    assert mode(home.global_file) == 0o640
    assert not edit_file(home.global_file, [Edit(MODEL, '"c"')])
    assert [path.name for path in home.global_file.parent.iterdir()] == ["config.toml"]


def test_a_new_file_is_private(home: Home) -> None:
    assert edit_file(home.global_file, [Edit(MODEL, '"c"'), Edit(("tui", "debug"), "true")])
    assert home.global_file.read_text() == '[defaults]\nmodel = "c"\n\n[tui]\ndebug = true\n'
    assert (mode(home.global_file), mode(home.global_file.parent)) == (0o600, 0o700)


def test_a_mark_and_the_line_ends_of_windows_stay(home: Home) -> None:
    home.write("")
    home.global_file.write_bytes(b"\xef\xbb\xbf[defaults]\r\nprovider = 'b'\r\n")
    assert edit_file(home.global_file, [Edit(MODEL, '"c"')])
    expected = b"\xef\xbb\xbf[defaults]\r\nprovider = 'b'\r\nmodel = \"c\"\r\n"
    assert home.global_file.read_bytes() == expected


def test_a_link_stays_and_its_target_is_replaced(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "lemon.toml"
    target.parent.mkdir()
    target.write_text("")
    home.global_file.parent.mkdir(parents=True)
    home.global_file.symlink_to(target)
    assert edit_file(home.global_file, [Edit(MODEL, '"c"')])
    assert home.global_file.is_symlink()
    assert target.read_text() == '[defaults]\nmodel = "c"\n'


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit(("gateway", "max_concurrent_runs"), "0"), "gateway.max_concurrent_runs: must be at"),
        (Edit(("providers", "openai", "base_url"), '"ftp://x"'), "providers.openai.base_url: must"),
        (Edit(("gateway", "rpc", "auth"), '"token"'), "gateway.rpc"),
        (Edit(("gateway", "engine"), '"x"'), "gateway.engine: removed"),
        (Edit(("defaults",), "1"), "defaults: is a table"),
        (
            Edit(("defaults", "model"), "nonsense"),
            "defaults.model: the new value is not a TOML value",
        ),
        (Edit(("gateway", "rpc", "tokens", 0), "1"), "gateway.rpc.tokens[0]: is no key"),
    ],
)
def test_an_edit_that_would_break_the_file_is_refused(home: Home, edit: Edit, message: str) -> None:
    home.write(
        "[defaults]\nmodel = 'a'\n[gateway.rpc]\nlisten = '127.0.0.1:1'\nauth = 'mtls'\n"
        "tls_cert = 'c'\ntls_key = 'k'\ntls_client_ca = 'a'\n"
    )
    before = home.global_file.read_bytes()
    with pytest.raises(ConfigWriteError) as caught:
        edit_file(home.global_file, [Edit(("tui", "debug"), "true"), edit])
    assert str(caught.value).startswith(f"{home.global_file}: not changed: ")
    assert message in str(caught.value)
    assert home.global_file.read_bytes() == before


def test_faults_that_were_there_before_keep_nobody_from_mending_one(home: Home) -> None:
    home.write("[gateway]\nmax_concurrent_runs = 0\nhealth_port = -1\n")
    assert edit_file(home.global_file, [Edit(("gateway", "health_port"), "1")])
    with pytest.raises(ConfigWriteError, match="max_concurrent_runs"):
        edit_file(home.global_file, [Edit(("gateway", "max_concurrent_runs"), "-1")])


@pytest.mark.parametrize("raw", [b"a = = 1", b"\xff", b"[defaults"])
def test_a_malformed_file_is_left_alone(home: Home, raw: bytes) -> None:
    home.write("")
    home.global_file.write_bytes(raw)
    with pytest.raises(ConfigWriteError, match=r"not changed: line 1: "):
        edit_file(home.global_file, [Edit(MODEL, '"c"')])
    assert home.global_file.read_bytes() == raw


def test_a_read_only_file_and_what_is_no_file_are_left_alone(home: Home) -> None:
    home.write("")
    home.global_file.chmod(0o444)
    with pytest.raises(ConfigWriteError, match="is read-only"):
        edit_file(home.global_file, [Edit(MODEL, '"c"')])
    home.global_file.unlink()
    os.mkfifo(home.global_file)
    with pytest.raises(ConfigWriteError, match="is not a regular file"):
        edit_file(home.global_file, [Edit(MODEL, '"c"')])


def test_what_somebody_else_writes_meanwhile_is_not_lost(home: Home) -> None:
    home.write("a = 1\n")
    calls = []

    def edited(file: object, text: str) -> str:
        calls.append(text)
        if len(calls) == 1:
            home.write("b = 2\n")
        return f"{text}c = 3\n"

    assert rewrite(home.global_file, edited)
    assert home.global_file.read_text() == "b = 2\nc = 3\n"
    assert calls == ["a = 1\n", "b = 2\n"]


def test_a_file_that_never_rests_is_left_to_its_writer(home: Home) -> None:
    home.write("")

    def edited(file: object, text: str) -> str:
        home.write(f"{text}#\n")
        return "mine = 1\n"

    with pytest.raises(ConfigWriteError, match="somebody else is writing"):
        rewrite(home.global_file, edited)
    assert "mine" not in home.global_file.read_text()
