"""The `lemon` program: the command line with the profiles of this build.

`LEMON_RUNTIME_PROFILE` chooses another profile than the default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from lemon_cli.main import main
from lemon_core.profiles import Profile, choose_profile

PROFILES = Path(__file__).parent / "built"
DEFAULT_PROFILE = "runtime_min"


def profile() -> Profile:
    """The profile of this process."""
    return choose_profile(PROFILES, environ=os.environ, default=DEFAULT_PROFILE)


def lemon() -> NoReturn:
    """Run the command line and exit."""
    main(profile())


if __name__ == "__main__":
    lemon()
