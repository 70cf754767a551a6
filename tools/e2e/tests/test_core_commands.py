"""The commands that look after an installation, from the built program in a fresh home."""

from __future__ import annotations

import json

import anyio
import pytest

from tools.e2e.tests.stack import Home, document, model_server, user

pytestmark = pytest.mark.anyio


async def test_every_command_that_scripts_read_prints_one_document_in_a_fresh_home() -> None:
    async with user() as home:
        doctor = await home.lemon("doctor", "--json")
        report = json.loads(doctor.out)
        assert report["overall"] == ("fail" if doctor.code else report["overall"])
        assert {check["name"] for check in report["checks"]} >= {"store.ping", "node_tools.git"}
        readiness = await document(home, "readiness")
        assert readiness["status"] in ("failed", "blocked", "warning", "ready")
        assert await document(home, "secrets", "list") == []
        assert (await document(home, "secrets", "status"))["configured"] is False
        assert (await document(home, "config", "validate"))["errors"] == []
        assert "defaults" in json.dumps(await document(home, "config", "show"))
        assert "today" in json.dumps(await document(home, "usage"))
        await document(home, "introspection")


async def test_a_stored_key_is_never_shown() -> None:
    canary = "sk-canary-0123456789abcdef"
    async with user() as home:
        assert (await home.lemon("secrets", "init")).code == 0
        stored = await home.lemon("secrets", "set", "BOX_KEY", canary)
        assert stored.code == 0
        assert "history" in stored.err
        shown = [
            await home.lemon("secrets", "list"),
            await home.lemon("secrets", "check"),
            await home.lemon("config", "show"),
            await home.lemon("doctor", "-v", "--bundle"),
        ]
        for ended in (stored, *shown):
            assert canary not in ended.out + ended.err
        assert [row["name"] for row in await document(home, "secrets", "list")] == ["BOX_KEY"]
        assert (await home.lemon("secrets", "delete", "BOX_KEY")).code == 0
        assert await document(home, "secrets", "list") == []


async def test_a_key_is_changed_in_the_file_and_everything_else_stays() -> None:
    text = '# mine\n[providers.box]  # here\napi_key_secret = "BOX_KEY"\n\n[gateway]\n'
    async with user() as home:
        await anyio.Path(home.paths.state_dir).mkdir(exist_ok=True)
        file = anyio.Path(home.paths.config_file)
        await file.write_text(text)
        assert (await home.lemon("config", "set", "gateway.max_concurrent_runs", "3")).code == 0
        assert await file.read_text() == text + "max_concurrent_runs = 3\n"
        refused = await home.lemon("config", "set", "gateway.max_concurrent_runs", "none")
        assert refused.code != 0
        assert "gateway.max_concurrent_runs" in refused.err
        assert await file.read_text() == text + "max_concurrent_runs = 3\n"


async def test_a_project_is_trusted_by_hand_and_only_as_it_is() -> None:
    async with user() as home, model_server({"default": {"text": "hi"}}, home.paths.home) as url:
        project = anyio.Path(home.work / ".lemon")
        await project.mkdir()
        file = project / "config.toml"
        await file.write_text('[profiles.evil]\nname = "e"\n[gateway]\nmax_concurrent_runs = 9\n')
        environ = {**home.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url}
        other = Home(home.paths, environ)
        before = await other.lemon("config", "get", "gateway.max_concurrent_runs")
        assert before.out.strip() == "2"
        asked = await other.lemon("config", "trust", ".")
        assert asked.code != 0
        assert "gateway.max_concurrent_runs" in asked.out + asked.err
        assert (await other.lemon("config", "trust", ".", "--yes")).code == 0
        after = await other.lemon("config", "get", "gateway.max_concurrent_runs")
        assert after.out.strip() == "9"
        await file.write_text("[gateway]\nmax_concurrent_runs = 8\n")
        changed = await other.lemon("config", "get", "gateway.max_concurrent_runs")
        assert changed.out.strip() == "2"


async def test_help_and_unknown_words_are_answered_for_every_command() -> None:
    async with user() as home:
        listed = await home.lemon("--help")
        words = [line.split()[0] for line in listed.out.splitlines() if line.startswith("  ")]
        names = [word for word in words if not word.startswith("-")]
        assert {"config", "secrets", "doctor", "quality", "update"} <= set(names)
        for name in names:
            shown = await home.lemon(name, "--help")
            assert (shown.code, shown.err) == (0, ""), name
            assert shown.out.startswith("Usage: lemon "), name
            wrong = await home.lemon(name, "--no-such-option")
            assert wrong.code == 2, name
        assert not home.paths.state_dir.exists()


async def test_usage_counts_a_run() -> None:
    async with user() as home:
        turn = {"text": "Fine.", "fake_usage": {"input": 40, "output": 2}}
        async with model_server({"default": turn}, home.paths.home) as url:
            environ = {**home.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url}
            other = Home(home.paths, environ)
            assert (await other.lemon("run", "--session", "w", "hi")).code == 0
        totals = json.dumps(await document(home, "usage"))
        assert "40" in totals
