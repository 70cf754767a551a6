"""`lemon completion`: the script with which a shell asks for what may come next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from lemon_cli.examples import examples
from lemon_core.cli.base import command_app, command_context

if TYPE_CHECKING:
    from lemon_core.profiles import Profile

# Each of them calls `lemon completion next WORD...`, whose last word is the unfinished one.
SCRIPTS: Final[Mapping[str, str]] = {
    "bash": """\
_lemon_completion() {
  local IFS=$'\\n'
  COMPREPLY=($("${COMP_WORDS[0]}" completion next -- "${COMP_WORDS[@]:1:COMP_CWORD}" \\
    2>/dev/null | cut -f1))
}
complete -o default -F _lemon_completion lemon
""",
    "zsh": """\
#compdef lemon
_lemon_completion() {
  local -a found
  local line
  while IFS= read -r line; do
    found+=("${${line/:/\\\\:}/$'\\t'/:}")
  done < <("${words[1]}" completion next -- "${(@)words[2,$CURRENT]}" 2>/dev/null)
  if (( $#found )); then _describe 'lemon' found; else _files; fi
}
compdef _lemon_completion lemon
""",
    "fish": """\
function __lemon_completion
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion next -- $words[2..-1] 2>/dev/null
end
complete -c lemon -a '(__lemon_completion)'
""",
}

app = command_app("Print the completion script of a shell.")


@app.command(
    context_settings={"allow_extra_args": True},
    epilog=examples(
        'eval "$(lemon completion bash)"    (in ~/.bashrc)',
        'eval "$(lemon completion zsh)"     (in ~/.zshrc, after compinit)',
        "lemon completion fish > ~/.config/fish/completions/lemon.fish",
    ),
)
def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SCRIPTS)}.")],
) -> int:
    """Print the script that makes a shell complete lemon's commands and options."""
    if shell == "next":
        for word, told in candidates(command_context(ctx).profile, ctx.args or [""]):
            print(f"{word}\t{told}" if told else word)
        return 0
    if shell not in SCRIPTS or ctx.args:
        raise typer.BadParameter(f"use one of {', '.join(SCRIPTS)}", param_hint="SHELL")
    print(SCRIPTS[shell], end="")
    return 0


def candidates(profile: Profile, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What may stand in place of the last word, each with a line about it."""
    *before, unfinished = words
    specs = [spec for group in profile.commands.values() for spec in group]
    if not before:
        rows = [(spec.name, spec.summary) for spec in specs]
    else:
        spec = profile.find_command(before[0])
        rows = [] if spec is None else _inside(spec.target, before[1:], unfinished)
    for word, told in rows:
        if word.startswith(unfinished):
            yield word, " ".join(told.split())


def _inside(target: str, before: Sequence[str], unfinished: str) -> list[tuple[str, str]]:
    """Subcommands and options of one command."""
    from lemon_core.profiles import load_target

    try:
        command: Any = typer.main.get_command(cast(typer.Typer, load_target(target)))
    except ImportError:
        return []
    for word in before:
        command = getattr(command, "commands", {}).get(word, command)
    inner = getattr(command, "commands", {})
    if not unfinished.startswith("-"):
        return [(name, each.get_short_help_str()) for name, each in inner.items()]
    rows = [
        (name, getattr(param, "help", None) or "")
        for param in command.params
        if param.param_type_name == "option" and not param.hidden
        for name in param.opts
        if name.startswith("--")
    ]
    return [*rows, ("--help", "Show this command's usage.")]
