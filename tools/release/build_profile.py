"""Writes the built form of a profile: the commands of its apps are looked up once, here."""

from __future__ import annotations

import sys
from pathlib import Path

from lemon_core.profiles import load_profile, render_profile, with_commands


def main(source: str, target: str) -> None:
    """Read the profile at `source` and write it with its commands to `target`."""
    built = with_commands(load_profile(Path(source)))
    Path(target).write_text(render_profile(built), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
