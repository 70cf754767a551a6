"""Which extensions are loaded, and what is wrong with them (specification coding_agent 9)."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from coding_agent.extensions.host import Extensions
from coding_agent.extensions.modules import PREFIX
from coding_agent.extensions.registration import ProviderRegistration
from coding_agent.tests.extension_files import Place, extension_source, write_extension
from coding_agent.tests.harness import tool_env
from lemon_agent import AbortSignal, ToolCallContext, ToolError
from lemon_agent.tool_registry import ToolOptions

pytestmark = pytest.mark.anyio

MARK = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').write_text('x')\n"


def call() -> ToolCallContext:
    return ToolCallContext("call_1", {}, AbortSignal(), lambda _: None)


def marked(folder: Path, name: str) -> Path:
    """An extension that leaves a mark when it is imported."""
    path = write_extension(folder, name)
    path.write_text(MARK + path.read_text())
    return path


async def names(place: Place, cwd: Path) -> list[str]:
    return [each.name for each in (await place.host.of(str(cwd))).extensions]


@pytest.mark.behaviour("coding_agent.22")
async def test_only_what_the_configuration_lets_in_is_imported(tmp_path: Path) -> None:
    """Everything else is listed with the reason."""
    project = tmp_path / "project"
    files = {
        "configured": marked(tmp_path / "configured", "configured"),
        "agents": marked(tmp_path / "agent" / "extensions", "agents"),
        "projects": marked(project / ".lemon" / "extensions", "projects"),
    }
    place = Place(tmp_path)
    assert await names(place, project) == ["configured"]
    assert {each.name: each.obstacle for each in await place.host.look(str(project))} == {
        "configured": None,
        "agents": "runtime.extensions.auto_load_default_paths is off",
        "projects": "runtime.extensions.auto_load_default_paths is off",
    }
    place.settings = replace(place.settings, auto_load=True)
    assert await names(place, project) == ["agents", "configured"]
    assert not files["projects"].with_suffix(".ran").exists()
    untrusted = (await place.host.look(str(project)))[-1]
    assert untrusted.obstacle == f"the project is not trusted: lemon config trust {project}"

    place.trusted.add(project)
    assert await names(place, project) == ["agents", "configured", "projects"]
    assert await names(place, tmp_path) == ["agents", "configured"]
    assert files["projects"].with_suffix(".ran").exists()

    place.settings = replace(place.settings, enabled=False)
    assert await names(place, project) == []
    assert {each.obstacle for each in await place.host.look(str(project))} == {
        "extensions are switched off (runtime.extensions.enabled)"
    }
    assert not [name for name in sys.modules if name.startswith(PREFIX)]


async def test_trust_that_ends_takes_the_extensions_away(tmp_path: Path) -> None:
    """DESIGN ruling 40."""
    project = tmp_path / "project"
    write_extension(project / ".lemon" / "extensions", "theirs")
    place = Place(tmp_path)
    place.settings = replace(place.settings, auto_load=True)
    place.trusted.add(project)
    assert await names(place, project) == ["theirs"]
    place.trusted.clear()
    assert await names(place, project) == []


async def test_a_relative_path_is_the_projects(tmp_path: Path) -> None:
    """A cloned repository chooses what lies there."""
    project = tmp_path / "project"
    write_extension(project / "ext", "relative")
    place = Place(tmp_path)
    place.settings = replace(place.settings, absolute=(), relative=(project / "ext",))
    assert await names(place, project) == []
    place.trusted.add(project)
    await place.host.reload(str(project))
    assert await names(place, project) == ["relative"]


async def test_where_nothing_may_be_loaded_no_file_is_looked_at(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.settings = replace(place.settings, absolute=())
    first = await place.host.of(str(tmp_path))
    assert first is await place.host.of("/nowhere")
    assert first.loaded_at_ms is None


@pytest.mark.behaviour("coding_agent.22")
async def test_a_reload_picks_up_a_change(tmp_path: Path) -> None:
    """Also one of a module of a package, in the same second and of the same size."""
    package = tmp_path / "configured" / "pack"
    package.mkdir(parents=True)
    source = extension_source("pack", "def tools(self, cwd):\n    return [made('say', words.SAID)]")
    (package / "__init__.py").write_text(f"from . import words\n{source}")
    (package / "words.py").write_text("SAID = 'one'\n")
    place = Place(tmp_path)

    async def said() -> str:
        (tool,) = (await place.host.of(str(tmp_path))).tools
        return (await tool.tool.execute(call())).text

    assert await said() == "one"
    (package / "words.py").write_text("SAID = 'two'\n")
    assert await said() == "one"
    await place.host.reload(str(tmp_path))
    assert await said() == "two"
    assert not list(tmp_path.rglob("__pycache__"))


FAULTY = {
    "syntax": ("def", "it cannot be imported: SyntaxError"),
    "exits": ("raise SystemExit(1)", "it cannot be imported: SystemExit"),
    "nothing": ("x = 1", "it cannot be imported: AttributeError"),
    "anonymous": ("class It: pass\nEXTENSION = It()", "it cannot be imported: AttributeError"),
    "misnamed": (extension_source("Two Words"), "its name 'Two Words' is not of small letters"),
    "unversioned": (extension_source("unversioned", version=" "), "it says no version"),
}


async def test_what_cannot_be_loaded_is_told_and_harms_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "configured"
    write_extension(folder, "good")
    for name, (source, _) in FAULTY.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "twin.py").write_text(extension_source("good"))
    (folder / "shared.py").write_text(extension_source("shared"))
    (folder / "shared.py").chmod(0o666)
    place = Place(tmp_path)
    found = await place.host.of(str(tmp_path))
    assert [each.name for each in found.extensions] == ["good"]
    told = {Path(each.path).stem: each.message for each in found.problems}
    for name, (_, words) in FAULTY.items():
        assert told.pop(name).startswith(words)
    assert told == {
        "twin": "another extension is called good already",
        "shared": f"{folder / 'shared.py'}: everybody may write it: chmod o-w",
    }
    assert all(each.callback == "" for each in found.problems)


async def test_a_manifest_is_heeded(tmp_path: Path) -> None:
    def package(name: str, manifest: str) -> None:
        folder = tmp_path / "configured" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(MARK + extension_source(name))
        (folder / "lemon_extension.json").write_text(manifest)

    said = '"version": "1", "schema_version": 1'
    package("right", f'{{"name": "right", {said}}}')
    package("other", f'{{"name": "another", {said}}}')
    package("blocked", f'{{"name": "blocked", {said}, "audit": {{"status": "blocked"}}}}')
    package("wasm", f'{{"name": "wasm", {said}, "host": {{"type": "wasm"}}}}')
    package("broken", "{")
    place = Place(tmp_path)
    found = await place.host.of(str(tmp_path))
    assert [each.name for each in found.extensions] == ["right"]
    told = {Path(each.path).name: each.message for each in found.problems}
    assert told["other"] == "its manifest calls it another, its code other"
    assert told["blocked"] == "its manifest says that an audit has blocked it"
    assert told["wasm"] == "its manifest says that it runs in wasm, not in Python"
    assert "is not JSON" in told["broken"]
    ran = {path.parent.name for path in tmp_path.rglob("*.ran")}
    assert ran == {"right", "other"}


async def test_a_link_out_of_the_project_is_not_loaded(tmp_path: Path) -> None:
    project = tmp_path / "project"
    outside = write_extension(tmp_path / "outside", "outside")
    folder = project / ".lemon" / "extensions"
    folder.mkdir(parents=True)
    os.symlink(outside, folder / "inside.py")
    place = Place(tmp_path)
    place.settings = replace(place.settings, auto_load=True)
    place.trusted.add(project)
    found = await place.host.of(str(project))
    assert found.extensions == ()
    assert "leads out of the project's folder" in found.problems[0].message


BAD_PARTS = {
    "tools": ("return 3", "gave int where a list is due"),
    "hooks": ("return {'on_lunch': print}", "there is no hook 'on_lunch'"),
    "capabilities": ("return ['a', 3]", "gave something that is no word"),
    "config_schema": ("return []", "gave list where a JSON Schema is due"),
    "providers": ("return [Provider('model', 'x', object())]", "model x is no provider, or lacks"),
}


@pytest.mark.parametrize("callback", BAD_PARTS)
async def test_each_part_is_checked_by_its_type(tmp_path: Path, callback: str) -> None:
    body, words = BAD_PARTS[callback]
    args = "self, cwd" if callback == "tools" else "self"
    for name, line in (
        ("wrong", f"def {callback}({args}):\n    {body}"),
        ("raises", f"def {callback}({args}):\n    raise OSError('no')"),
        ("sync", f"async def {callback}({args}):\n    return None"),
        ("value", f"{callback} = 3"),
    ):
        write_extension(tmp_path / "configured", name, line)
    found = await Place(tmp_path).host.of(str(tmp_path))
    assert len(found.extensions) == 4
    told = {each.extension: (each.callback, each.message) for each in found.problems}
    assert told["wrong"][1].startswith(words)
    assert told["raises"] == (callback, "raised OSError: no")
    assert told["sync"] == (callback, "is async, and must be a plain function")
    assert told["value"] == (callback, "is not a function")
    assert {each.callback for each in found.problems} == {callback}


async def test_each_tool_is_checked_and_the_good_ones_stay(tmp_path: Path) -> None:
    body = """
def tools(self, cwd):
    good = made("good", cwd)
    odd = [made("no name", "x"), made("", "x"), 3, made("good", "twice")]
    odd += [AgentTool(n, "", p, good.execute) for n, p in (
        ("array", {"type": "array"}), ("code", {"type": "object", "x": print}),
        ("flat", {"type": "object", "properties": {"a": "string"}}))]
    return [*odd, good, ExtensionTool(made("classed", "x"), frozenset({"sharp"}))]
"""
    write_extension(tmp_path / "configured", "mixed", body)
    found = await Place(tmp_path).host.of(str(tmp_path))
    assert [each.tool.name for each in found.tools] == ["good"]
    assert [each.message for each in found.problems] == [
        "'no name' is no name of a tool",
        "'' is no name of a tool",
        "gave int where a tool is due",
        'array: its parameters are no schema of "type": "object"',
        "code: its parameters are not JSON (Object of type builtin_function_or_method is not JSON "
        "serializable)",
        "flat: its parameters have properties that are no schemas",
        "two of its tools are called good",
        "classed has a class that there is not: ['sharp']",
    ]


async def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    folder, began = tmp_path / "configured", tmp_path / "began"
    write_extension(folder, "good")
    wait = f"import pathlib, threading\npathlib.Path({str(began)!r}).touch()\n"
    (folder / "a.py").write_text(f"{wait}threading.Event().wait()\n{extension_source('a')}")
    place = Place(tmp_path)
    found: list[str] = []

    async def load() -> None:
        found.extend(await names(place, tmp_path))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            while not began.exists():
                await anyio.lowlevel.checkpoint()
            await place.clock.advance(15_000)
    assert found == ["good"]
    (problem,) = (await place.host.of(str(tmp_path))).problems
    assert (problem.extension, problem.message) == ("a", "it took longer than 15000 ms to load")


# -- tools ---------------------------------------------------------------------------------------


async def tools_of(place: Place, cwd: Path, own: frozenset[str] = frozenset()) -> dict[str, str]:
    tools = await place.foreign(own).of(str(cwd), ToolOptions(), ())
    return {each.name: each.owner for each in tools}


async def test_names_go_to_our_own_tools_then_to_the_first_extension(tmp_path: Path) -> None:
    both = "def tools(self, cwd):\n    return [made('bash', 'x'), made('same', self.name)]"
    write_extension(tmp_path / "configured", "beta", both)
    write_extension(tmp_path / "configured", "alpha", both)
    place = Place(tmp_path)
    own = frozenset({"bash"})
    assert await tools_of(place, tmp_path, own) == {"same": "alpha"}
    conflicts = await place.foreign(own).conflicts(str(tmp_path))
    assert [each.listed() for each in conflicts] == [
        {
            "tool_name": "bash",
            "winner": "built_in",
            "shadowed": ["extension:alpha", "extension:beta"],
        },
        {"tool_name": "same", "winner": "extension:alpha", "shadowed": ["extension:beta"]},
    ]


async def test_an_unclassed_tool_counts_as_dangerous_and_classes_never_weaken(
    tmp_path: Path,
) -> None:
    body = """
def tools(self, cwd):
    return [made("bare", "x"), ExtensionTool(made("harmless", "x")),
            ExtensionTool(made("known", "x")), made("bash", "x")]
"""
    write_extension(tmp_path / "configured", "one", body)
    place = Place(tmp_path)
    place.table.classify("known", {"external"})
    tools = await place.foreign(frozenset({"bash"})).of(str(tmp_path), ToolOptions(), ())
    assert place.table.classes("bare") == {"dangerous", "external"}
    assert place.table.classes("harmless") == set()
    assert place.table.classes("known") == {"external"}
    assert place.table.classes("bash") == {"dangerous"}
    env = tool_env(tmp_path)
    assert {each.name: each.bind(env).exclusive for each in tools} == {
        "bare": True,
        "harmless": False,
        "known": False,
    }


@pytest.mark.behaviour("coding_agent.22")
async def test_a_tool_that_breaks_ends_only_its_call_and_telemetry_hears_of_it(
    tmp_path: Path,
) -> None:
    body = """
def tools(self, cwd):
    return [made("fine", "ok"), made("broken", "raise"), made("leaving", "exit")]
"""
    write_extension(tmp_path / "configured", "some", body)
    place = Place(tmp_path)
    heard: list[tuple[str, object]] = []
    place.telemetry.attach("coding_agent", lambda name, _, facts: heard.append((name, facts)))
    tools = await place.foreign().of(str(tmp_path), ToolOptions(), ())
    by_name = {each.name: each.bind(tool_env(tmp_path)) for each in tools}
    assert (await by_name["fine"].execute(call())).text == "ok"
    with pytest.raises(RuntimeError, match="broken"):
        await by_name["broken"].execute(call())
    with pytest.raises(ToolError, match="wanted to end the process"):
        await by_name["leaving"].execute(call())
    ends = [name.rpartition(".")[2] for name, _ in heard]
    assert ends == ["start", "stop", "start", "exception", "start", "exception"]
    assert "some" not in str(heard)
    assert "call_1" not in str(heard)


# -- providers -----------------------------------------------------------------------------------


class Port:
    """Whoever uses model providers; it has `built_in` of its own."""

    def __init__(self) -> None:
        self.offered: dict[str, object] = {}

    def is_built_in(self, name: str) -> bool:
        return name == "built_in"

    def offer(self, name: str, implementation: object) -> None:
        self.offered[name] = implementation

    def withdraw(self, name: str) -> None:
        del self.offered[name]


async def test_a_provider_of_ours_wins_then_the_first_by_name(tmp_path: Path) -> None:
    """And what was given is taken back with the extension."""
    body = """
def providers(self):
    class Api:
        def events(self, request): ...
        def put(self): ...
        def search(self): ...
    return [Provider("model", "acme", Api()), Provider("model", "built_in", Api()),
            Provider("memory", "acme", Api())]
"""
    for name in ("zeta", "alpha"):
        write_extension(tmp_path / "configured", name, body)
    place, port = Place(tmp_path), Port()
    registration = ProviderRegistration({"model": port})
    host = Extensions(lambda: place.settings, lambda _: False, registration, place.clock)
    await host.of(str(tmp_path))
    both = ("alpha", "zeta")
    registered, conflicts = registration.of(both)
    assert [(r.type, r.name, r.extension, r.is_used) for r in registered] == [
        ("model", "acme", "alpha", True),
        # Nothing in this runtime asks for memories.
        ("memory", "acme", "alpha", False),
    ]
    assert [(c.type, c.name, c.extension, c.winner) for c in conflicts] == [
        ("model", "built_in", "alpha", "built-in"),
        ("model", "acme", "zeta", "alpha"),
        ("model", "built_in", "zeta", "built-in"),
        ("memory", "acme", "zeta", "alpha"),
    ]
    assert list(port.offered) == ["acme"]
    host.close()
    assert (registration.of(both), port.offered) == (([], []), {})
