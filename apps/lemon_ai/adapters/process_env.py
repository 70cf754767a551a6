"""Whether a library that reads the process environment by itself may be asked.

The chains of cloud credentials read variables and files of the home directory on their own. A
client that was given another environment must not get what the process has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_HOMES = ("HOME", "USERPROFILE", "APPDATA")


def is_process_environment(env: Mapping[str, str], *prefixes: str) -> bool:
    """Whether `env` has the process's homes and its variables with these prefixes.

    It may hold more, for example from a `.env` file.
    """
    return all(
        env.get(name) == value
        for name, value in os.environ.items()
        if name in _HOMES or name.startswith(prefixes)
    )
