"""From an argument list to an exit code.

`--version` and the top-level help are printed from profile data: they must not pay for importing
what other commands need.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lemon_cli.errors import ExitCode
from lemon_core.commands import CommandContext
from lemon_core.paths import PathSettings
from lemon_core.profiles import Profile
from lemon_core.version import __version__

# What a start imports stays: with Python's own threshold of 700 the search for cycles in it took a
# seventh of the time of `lemon run`. A server sets its own once it is up.
GC_THRESHOLDS = (100_000, 20, 50)
HELP_WORDS = frozenset({"--help", "-h", "help"})


def main(profile: Profile, argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line of this process and exit: the only place that does."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    gc.set_threshold(*GC_THRESHOLDS)
    code = run(arguments, profile=profile)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`lemon run … | head`); the interpreter must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(
    argv: Sequence[str],
    *,
    profile: Profile,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> int:
    """The exit code of `lemon` with these arguments; tests and other commands call this."""
    env = os.environ if environ is None else environ
    if argv and argv[0] in ("--version", "-V"):
        print(f"lemon {__version__}")
        return ExitCode.OK
    if not argv:
        return _bare(profile, env, cwd)
    if argv[0] in HELP_WORDS and len(argv) == 1:
        print(top_level_help(profile))
        return ExitCode.OK
    words = [*argv[1:], "--help"] if argv[0] == "help" else list(argv)
    return _dispatch(words, profile, env, cwd or _user_directory(env))


def top_level_help(profile: Profile) -> str:
    """What `lemon --help` prints: every command of the profile with its summary."""
    specs = [spec for group in profile.commands.values() for spec in group]
    width = max((len(spec.name) for spec in specs), default=0)
    lines = ["usage: lemon COMMAND [ARGS]...", "", "Commands:"]
    lines += [f"  {spec.name:<{width}}  {spec.summary}" for spec in specs]
    lines += ["", "Options:", "  -V, --version  Print the version.", "  -h, --help     This text."]
    lines += ["", 'Try: lemon run "Say hello"    (lemon COMMAND --help tells more)']
    return "\n".join(lines)


def _bare(profile: Profile, env: Mapping[str, str], cwd: Path | None) -> int:
    """`lemon` alone: `chat`, which sets Lemon up when that is needed; else only usage."""
    on_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    if on_terminal and profile.find_command("chat") is not None:
        return _dispatch(["chat"], profile, env, cwd or _user_directory(env))
    print(top_level_help(profile), file=sys.stderr)
    return ExitCode.USAGE


def _dispatch(words: list[str], profile: Profile, env: Mapping[str, str], cwd: Path) -> int:
    name, *rest = words
    spec = profile.find_command(name)
    if spec is None:
        from difflib import get_close_matches  # only for who mistyped

        known = [s.name for group in profile.commands.values() for s in group]
        close = get_close_matches(name, known, n=1)
        print("usage: lemon COMMAND [ARGS]...", file=sys.stderr)
        hint = f"did you mean {close[0]!r}?" if close else "lemon --help lists the commands"
        print(f"lemon: unknown command {name!r}: {hint}", file=sys.stderr)
        return ExitCode.USAGE
    from lemon_cli.invoke import invoke  # typer is imported for commands only

    context = CommandContext(profile, env, PathSettings.resolve(env), cwd)
    return invoke(spec, rest, context)


def _user_directory(env: Mapping[str, str]) -> Path:
    """Where the user is: `bazel run` starts programs elsewhere and says where it was called."""
    return Path(env.get("BUILD_WORKING_DIRECTORY") or Path.cwd())
