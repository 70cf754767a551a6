"""The server program: `lemon start` as a target of its own."""

from __future__ import annotations

import sys

from lemon_cli.main import main
from tools.release.launcher import profile

if __name__ == "__main__":
    main(profile(), ["start", *sys.argv[1:]])
