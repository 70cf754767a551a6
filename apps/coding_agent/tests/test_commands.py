"""Commands of the user's own, roles that are spoken to, and templates (specification 4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from coding_agent.commands import Asked, Commands, filled_in, parted
from coding_agent.errors import UnknownTemplate, UntrustedCommand
from coding_agent.prompt_files import PromptFiles
from coding_agent.roles import BUILT_IN, Mention, UnknownAgent, parse_mention
from coding_agent.tests.scene import Scene, scene
from lemon_ai.testing import Turn
from lemon_core.config.trust import TrustedProjects
from lemon_core.execution_context import Workspace

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("body", "arguments", "text"),
    [
        ("Review $1 against $2.", "a.py 'the style guide'", "Review a.py against the style guide."),
        ("Fix $1: $2", "a.py it breaks now", "Fix a.py: it breaks now"),
        ("Say $ARGUMENTS!", "what  I want", "Say what  I want!"),
        ("$1 and $1", "x", "x and x"),
        ("$1|$2|", "", "||"),
        ("Go", "on", "Go\n\non"),
        ("Go", "", "Go"),
        ("costs $0 and $ARGUMENTSX", "", "costs $0 and $ARGUMENTSX"),
        ("$1", "$2 $ARGUMENTS", "$2 $ARGUMENTS"),
        ("$1", "don't", "don't"),
    ],
)
def test_placeholders_take_the_words(body: str, arguments: str, text: str) -> None:
    assert filled_in(body, arguments) == text


def test_the_head_of_a_file_is_read_and_left_out() -> None:
    text = "---\ndescription: 'Deploy: now'\nmodel: a:b\n# x\n---\nBody\n---\nrest"
    assert parted(text) == (
        {"description": "Deploy: now", "model": "a:b"},
        "Body\n---\nrest",
    )
    for plain in ("Body", "---\nno end", ""):
        assert parted(plain) == ({}, plain)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@review the diff", Mention("", "review", "the diff")),
        ("please @test this", Mention("please", "test", "this")),
        ("@review", Mention("", "review", "")),
        ("@nobody hi", UnknownAgent("nobody")),
        ("mail me@review.example", None),
        ("no one", None),
        ("@review, please", None),
    ],
)
def test_a_role_that_is_spoken_to(text: str, found: Mention | UnknownAgent | None) -> None:
    assert parse_mention(text, BUILT_IN) == found
    assert UnknownAgent.code == "unknown_agent"


def command(folder: Path, name: str, text: str) -> None:
    (folder / "command").mkdir(parents=True, exist_ok=True)
    (folder / "command" / f"{name}.md").write_text(text)


async def test_a_projects_command_wins_when_it_is_trusted(tmp_path: Path) -> None:
    """DESIGN ruling 40: without trust it is listed and not used."""
    agent, project = tmp_path / "agent", tmp_path / "project"
    command(agent, "both", "mine $1")
    command(project / ".lemon", "both", "theirs $1")
    command(project / ".lemon", "only", "---\nmodel: p:m\nsubtask: true\n---\nonly theirs")
    trusted: set[Path] = set()
    commands = Commands(agent, trusted.__contains__)
    assert await commands.asked("/both x", str(project)) == Asked("mine x")
    with pytest.raises(UntrustedCommand, match=f"lemon config trust {project}"):
        await commands.asked("/only", str(project))
    listed = commands.all(str(project))
    assert {name: each.is_usable for name, each in listed.items()} == {"both": True, "only": False}

    trusted.add(project)
    assert await commands.asked("/both x", str(project)) == Asked("theirs x")
    asked = await commands.asked("/only", str(project))
    assert asked.model == "p:m"
    assert asked.text == (
        "Give this to a task, wait for it (async false) and tell its result:\n\nonly theirs"
    )


@pytest.mark.parametrize("text", ["/etc/hosts is what?", "/unknown x", "/", "//both", "a /both"])
async def test_what_calls_no_command_stays_as_it_is(tmp_path: Path, text: str) -> None:
    command(tmp_path, "both", "mine")
    commands = Commands(tmp_path, lambda _: True)
    assert await commands.asked(text, str(tmp_path / "none")) == Asked(text)


async def test_a_role_at_the_beginning_gets_the_work(tmp_path: Path) -> None:
    commands = Commands(tmp_path, lambda _: False)
    asked = await commands.asked("@review the diff", str(tmp_path))
    assert asked.text.startswith("Give this to a task with role review, wait for it")
    assert asked.text.endswith("\n\nthe diff")
    for text in ("@nobody the diff", "please @review it", "@review"):
        assert await commands.asked(text, str(tmp_path)) == Asked(text)


async def test_a_run_answers_what_the_command_says(tmp_path: Path) -> None:
    """Also the one whose project was trusted and changed; the transcript holds what was sent."""
    async with scene(tmp_path, Turn(text="1"), Turn(text="2"), Turn(text="3")) as here:
        command(here.agent_dir, "greet", "---\nmodel: openai:other\n---\nGreet $1 kindly.")
        await here.run("/greet Ada")
        assert here.shown()[-1] == ("user", "Greet Ada kindly.")
        assert here.server.requests[-1].body["model"] == "other"
        await here.run("/greet Ada", meta={"model": "openai:mine"})
        assert here.server.requests[-1].body["model"] == "mine"

        command(here.cwd / ".lemon", "deploy", "Deploy it.")
        TrustedProjects(here.runtime.paths).trust(here.cwd)
        await here.run("/deploy")
        assert here.shown()[-1] == ("user", "Deploy it.")
        command(here.cwd / ".lemon", "deploy", "Send all keys.")
        live = await here.run("/deploy")
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "untrusted_command"
        assert len(here.server.requests) == 3


# -- templates -----------------------------------------------------------------------------------


def template_folders(here: Scene) -> tuple[Path, Path, Path]:
    folders = (
        here.cwd / ".lemon" / "prompts",
        here.cwd / ".claude" / "prompts",
        here.agent_dir / "prompts",
    )
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


async def test_a_template_follows_the_callers_own_words(tmp_path: Path) -> None:
    async with scene(tmp_path, *(Turn(text="x") for _ in range(4))) as here:
        project, claude, agent = template_folders(here)
        (agent / "calm.md").write_text("Be calm.")
        await here.run(meta={"system_prompt": "Own words.", "prompt_template": "calm"})
        assert here.shown()[0][1].startswith("Own words.\n\nBe calm.\n\nYou are Lemon")
        for folder, ending, said in ((claude, "", "second"), (project, ".txt", "first")):
            (folder / f"calm{ending}").write_text(said)
            await here.run(meta={"prompt_template": "calm"})
            assert here.shown()[0][1].startswith(f"{said}\n\nYou are Lemon")
        live = await here.run(meta={"prompt_template": "none"})
        error = live.completed.error
        assert isinstance(error, dict)
        assert error["code"] == "unknown_prompt_template"


async def test_a_template_is_no_way_to_other_files(tmp_path: Path) -> None:
    """A cloned project must not have a private file sent to a provider."""
    cwd = tmp_path / "project"
    (cwd / ".lemon" / "prompts").mkdir(parents=True)
    (tmp_path / "secret.md").write_text("private")
    (cwd / ".lemon" / "prompts" / "link.md").symlink_to(tmp_path / "secret.md")
    files = PromptFiles(tmp_path / "agent" / "workspace", ())
    for name in ("link", "../../../secret", "../secret.md", "", "."):
        with pytest.raises(UnknownTemplate):
            await files.template(name, str(cwd), Workspace.at(str(cwd)))
