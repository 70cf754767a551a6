"""`lemon config`: check, show and change the configuration, and trust a project's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lemon_core.cli.base import (
    command_app,
    command_context,
    confirmed,
    note,
    print_json,
    project_dir,
)
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_core.config.project import ProjectSetting
    from lemon_core.config.trust import TrustedProjects

_MAX_CODE_SHOWN = 50

app = command_app("Check and show the configuration, and trust a project's.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
ProjectOption = Annotated[
    Path | None,
    typer.Option("--project-dir", "-p", help="The project to look at (default: this folder)."),
]


@app.command()
def validate(
    ctx: typer.Context,
    project: ProjectOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also name the files that were read.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Check every file of the configuration and name each fault with its line.

    Exits 1 when there is one. What is only ignored, such as an unknown key, is a warning.
    """
    from lemon_core.cli.config_view import inspected
    from lemon_core.cli.marks import tick

    context = command_context(ctx)
    view = inspected(context, project_dir(context, project))
    if as_json:
        print_json(
            {
                "valid": not view.errors,
                "errors": list(view.errors),
                "warnings": list(view.loaded.warnings),
                "files": [{"path": str(file), "present": there} for file, there in view.files],
            }
        )
        return 1 if view.errors else 0
    if verbose:
        for file, there in view.files:
            print(f"  {file}{'' if there else ' (not there)'}")
    for line in view.loaded.warnings:
        print(f"! {line}")
    for line in view.errors:
        print(f"{tick(context, False)} {line}")
    if not view.errors:
        print(f"{tick(context, True)} The configuration is valid.")
    return 1 if view.errors else 0


@app.command()
def show(
    ctx: typer.Context,
    project: ProjectOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show keys that are not set too.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show what is in force and where it comes from; keys show as ✓ or ✗, never their values.

    A file with faults is shown as far as it can be used.
    """
    from lemon_core.cli.config_view import as_document, as_lines, inspected

    context = command_context(ctx)
    view = inspected(context, project_dir(context, project), stored=True)
    if as_json:
        print_json(as_document(view))
        return 0
    for line in (*view.errors, *view.loaded.warnings):
        note(line)
    print("\n".join(as_lines(view, context, everything=verbose)))
    return 0


@app.command()
def get(
    ctx: typer.Context,
    path: Annotated[str, typer.Argument(help="A key, such as defaults.model, or a section.")],
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print one value as it is in force; the value of a credential is hidden."""
    import json

    from lemon_core.cli.config_view import inspected, origins_below

    context = command_context(ctx)
    found = origins_below(inspected(context, project_dir(context, project), stored=True), path)
    if as_json:
        print_json(found)
    elif list(found) == [path]:
        value = found[path]["value"]
        print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    else:
        for name, origin in found.items():
            print(f"{name} = {json.dumps(origin['value'], ensure_ascii=False)}")
    return 0


@app.command("set")
def set_values(
    ctx: typer.Context,
    pairs: Annotated[
        list[str], typer.Argument(metavar="PATH VALUE", help="Keys, each with its value.")
    ],
) -> int:
    """Set keys of the global file; all of them or, when one cannot be set, none.

    A value is read as TOML where that fits the key (3, true, ["a"]) and as text otherwise. The rest
    of the file stays as it is, comments included.
    """
    if len(pairs) % 2:
        raise typer.BadParameter("every PATH needs a VALUE", param_hint="PATH VALUE")
    from lemon_core.cli.config_edit import set_in_file

    context = command_context(ctx)
    told = set_in_file(context, list(zip(pairs[::2], pairs[1::2], strict=True)))
    _print_lines(told)
    return 0


@app.command()
def unset(
    ctx: typer.Context,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="The keys to delete.")],
) -> int:
    """Delete keys from the global file, so that what lies below counts again."""
    from lemon_core.cli.config_edit import unset_in_file

    _print_lines(unset_in_file(command_context(ctx), paths))
    return 0


@app.command()
def trust(
    ctx: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The project's folder.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the trusted projects.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take the trust back.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Let a project's .lemon/config.toml set more than the keys that are always safe, and let its
    extensions, WASM tools, commands and MCP servers be used.

    Shows what that is and asks. A file that changes later is not trusted any more.
    """
    from lemon_core.config.trust import TrustedProjects

    context = command_context(ctx)
    projects = TrustedProjects(context.paths)
    if show_list:
        return _list_trusted(projects, as_json)
    if directory is None:
        raise typer.BadParameter("say which folder, or give --list", param_hint="DIR")
    where = project_dir(context, directory)
    if revoke:
        gone = projects.revoke(where)
        if as_json:
            print_json({"directory": str(where), "trusted": False, "revoked": gone})
        else:
            print(f"{where} is no longer trusted." if gone else f"{where} was not trusted.")
        return 0
    return _trust(context, projects, where, yes=yes, as_json=as_json)


def _trust(
    context: CommandContext, projects: TrustedProjects, where: Path, *, yes: bool, as_json: bool
) -> int:
    from lemon_core.config.contributed import Contributed
    from lemon_core.config.project import project_settings
    from lemon_core.config.trust import project_as_it_is
    from lemon_core.config.trusted_code import code_files

    # First the digests: a file that is exchanged while the person reads is refused then.
    seen = project_as_it_is(where)
    settings = project_settings(where, context.paths, Contributed.of(context.profile))
    code = [str(file.relative_to(where)) for file in code_files(where)]
    lines = [*_settings_lines(where, settings), *_code_lines(where, code)]
    if as_json:
        for line in lines:
            note(line)
    else:
        _print_lines(lines)
    trusted = confirmed(f"Trust {where}?", yes=yes)
    if trusted:
        projects.trust(where, seen=seen)
    if as_json:
        rows = [{"path": s.path, "value": s.value, "safe": s.safe} for s in settings]
        document = {"directory": str(where), "trusted": trusted, "settings": rows, "code": code}
        print_json(document)
    else:
        print(f"{where} is trusted." if trusted else "Nothing was changed.")
    return 0 if trusted else 1


def _settings_lines(where: Path, settings: Sequence[ProjectSetting]) -> list[str]:
    import json

    risky = [setting for setting in settings if not setting.safe]
    if not risky:
        return [f"{where}: its file sets nothing beyond the safe keys."]
    lines = [f"{where}: with trust its file also sets"]
    return lines + [f"  {s.path} = {json.dumps(s.value, ensure_ascii=False)}" for s in risky]


def _code_lines(where: Path, code: Sequence[str]) -> list[str]:
    if not code:
        return []
    shown = [f"  {name if name.isprintable() else ascii(name)}" for name in code[:_MAX_CODE_SHOWN]]
    more = len(code) - len(shown)
    rest = [f"  and {more} more"] if more else []
    return [f"{where}: with trust these files of it are used as well:", *shown, *rest]


def _list_trusted(projects: TrustedProjects, as_json: bool) -> int:
    found = projects.list()
    standing = [(project, projects.is_trusted(project.directory)) for project in found]
    if as_json:
        rows = [
            {"directory": str(project.directory), "digest": project.digest, "current": current}
            for project, current in standing
        ]
        print_json(rows)
        return 0
    for project, current in standing:
        print(
            f"{project.directory}{'' if current else '  (its files have changed: trust it again)'}"
        )
    if not found:
        print("No project is trusted.")
    return 0


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)
