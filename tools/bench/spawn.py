"""`spawn.py REPORT COMMAND…`: run a command and write its wall time, exit code and peak memory.

Standard library only and run as `python3 -I -S`: the kernel counts the memory of whoever starts a
process into the peak of the started one, so the starter has to be smaller than what it measures.
"""

import json
import os
import sys
import time


def main(report: str, command: list[str]) -> int:
    """Run `command` with this process's own streams; 0 whatever it ended with."""
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], command, dict(os.environ))
    _, status, usage = os.wait4(pid, 0)
    wall_s = time.perf_counter() - began
    code = os.waitstatus_to_exitcode(status)
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"wall_s": wall_s, "code": code, "peak_kib": usage.ru_maxrss}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
