"""The programs: the command line with the profiles of this build.

`LEMON_RUNTIME_PROFILE` chooses another profile than the default.
"""

from __future__ import annotations

import os
import sys
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


def server() -> NoReturn:
    """The server program: `lemon start` as a target of its own."""
    main(profile(), ["start", *sys.argv[1:]])
