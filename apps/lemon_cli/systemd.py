"""Lemon as a unit of the user's systemd."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lemon_cli.errors import CliError
from lemon_core.commands import CommandContext
from lemon_core.config.write import write_new
from lemon_core.profiles import PROFILE_VARIABLE

UNIT: Final = "lemon.service"
TIMEOUT_S: Final = 60.0
# What the server needs of the shell that installs it; keys are no part of a unit file.
_KEPT: Final = ("PATH", PROFILE_VARIABLE, "LEMON_DOTENV_DIR", "LEMON_LOG_LEVEL")


def unit_file(context: CommandContext) -> Path:
    """Where the unit belongs."""
    configured = context.environ.get("XDG_CONFIG_HOME", "").strip()
    base = Path(configured) if configured else context.paths.home / ".config"
    return base / "systemd" / "user" / UNIT


def unit_text(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The unit that keeps `command` running. Source: systemd.service(5), systemd.exec(5)."""
    lines = ["[Unit]", "Description=Lemon", "After=network.target", "", "[Service]"]
    lines.append(f"ExecStart={' '.join(map(_quoted, command))}")
    lines += [
        f"Environment={_quoted(f'{name}={environ[name]}', variables=False)}"
        for name in _KEPT
        if environ.get(name)
    ]
    lines += ["WorkingDirectory=%h", "Restart=on-failure", "RestartSec=5", "UMask=0077"]
    lines += ["KillMode=mixed", "TimeoutStopSec=20", "", "[Install]", "WantedBy=default.target"]
    return "\n".join(lines) + "\n"


def install(context: CommandContext, command: Sequence[str]) -> Path:
    """Write the unit and have it started with every login. Raises `CliError`."""
    _systemctl(context, "show-environment")
    path = unit_file(context)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{UNIT}.new")
    draft.unlink(missing_ok=True)
    write_new(draft, unit_text(command, context.environ).encode())
    draft.replace(path)
    _systemctl(context, "daemon-reload")
    _systemctl(context, "enable", UNIT)
    return path


def uninstall(context: CommandContext) -> bool:
    """Stop the unit and remove it; False when there is none. Raises `CliError`."""
    path = unit_file(context)
    if not path.exists():
        return False
    _systemctl(context, "disable", "--now", UNIT)
    path.unlink()
    _systemctl(context, "daemon-reload")
    return True


def start(context: CommandContext) -> None:
    """Start the unit; one that runs already stays. Raises `CliError`."""
    _systemctl(context, "start", UNIT)


def _systemctl(context: CommandContext, *arguments: str) -> None:
    command = ["systemctl", "--user", *arguments]
    try:
        done = subprocess.run(
            command,
            env=dict(context.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as exc:
        raise CliError(
            "there is no systemctl on this machine: lemon daemon starts Lemon in the background"
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise CliError(f"{' '.join(command)} gave no answer in {TIMEOUT_S:.0f} s") from exc
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[0] if said else f"exit {done.returncode}"
        raise CliError(f"{' '.join(command)} failed: {why}")


def _quoted(word: str, *, variables: bool = True) -> str:
    """`word` as systemd reads it back; in commands it would put variables in."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if variables else text}"'
