"""What runs inside a kernel: it reads requests, runs scripts and passes their calls of helpers on.

The text of this file is given to a Python interpreter, which need not be Lemon's own: it imports
the standard library and nothing else. Requests and frames go over the one socket that comes as
standard input; scripts themselves have no input. What they print goes to the real output, and a
secret mark tells there where the output of a script ends.
"""

from __future__ import annotations

import builtins
import json
import linecache
import os
import select
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

VERSION = 1
MARK = b"\x1elemon-python\t"
MAX_FRAME_BYTES = 262_144
INTERRUPTED = 130

Frame = dict[str, Any]


class ToolError(Exception):
    """A helper failed or was refused; the text says why."""


class UnsupportedInput(EOFError):
    """A script asked for input, which nobody can give."""


class Channel:
    """Requests in, frames out."""

    def __init__(self, fd: int) -> None:
        # A copy that programs which the script starts do not inherit.
        self.socket = socket.socket(fileno=os.dup(fd))
        self._requests = self.socket.makefile("rb")

    def receive(self) -> Frame:
        """The next request; raises EOFError when there will be none."""
        line = self._requests.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        request: Frame = json.loads(line)
        return request

    def send(self, **frame: object) -> None:
        """Send a frame; raises ValueError for one that is too large or no JSON."""
        # As the other side reads it: it would take anything else for spoiled.
        text = json.dumps(frame, ensure_ascii=False, allow_nan=False)
        data = MARK + text.encode() + b"\n"
        if len(data) > MAX_FRAME_BYTES:
            raise ValueError(f"{len(data)} bytes are more than a frame may have")
        self.socket.sendall(data)


class Helpers:
    """Calls the session's own tools: while a script runs, one call at a time, and never from a
    forked process."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Channel | None = channel
        self._lock = threading.Lock()
        self._last_id = 0
        self._token: str | None = None
        os.register_at_fork(after_in_child=self._cut_off)

    def open(self, token: str) -> None:
        """A script begins, whose calls carry `token`."""
        self._token = token

    def close(self) -> None:
        """The script is over; a thread that it left calls nothing any more."""
        with self._lock:  # a call on its way has its answer first
            self._token = None

    def named(self, tool: str, names: Sequence[str]) -> Callable[..., str]:
        """The function for scripts; arguments without a name get `names` in this order."""

        def helper(*args: object, **kwargs: object) -> str:
            if len(args) > len(names):
                raise TypeError(f"{tool}() takes at most {len(names)} arguments")
            return self._call(tool, {**dict(zip(names, args)), **kwargs})  # noqa: B905 - old Pythons

        helper.__name__ = helper.__qualname__ = tool
        helper.__doc__ = f"{tool}({', '.join(names)}): the text that the tool gives."
        return helper

    def _call(self, tool: str, arguments: Frame) -> str:
        with self._lock:
            channel, token = self._channel, self._token
            if channel is None:
                raise ToolError("helpers work in the script's own process only")
            if token is None:
                raise ToolError("helpers work only while a script runs")
            self._last_id += 1
            try:
                channel.send(type="call", id=self._last_id, token=token, tool=tool, args=arguments)
            except (TypeError, ValueError) as exc:
                raise ToolError(f"{tool}: these arguments cannot be passed on: {exc}") from None
            answer = channel.receive()
        if "error" in answer:
            raise ToolError(answer["error"])
        text: str = answer["text"]
        return text

    def _cut_off(self) -> None:
        self._channel, self._lock = None, threading.Lock()


def main() -> None:
    """Serve until the other side has gone or says so."""
    channel = Channel(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with, args=(channel.socket,), daemon=True).start()
    # The second thread is ours, and only waits: a script that forks is not to hear of it.
    warnings.filterwarnings("ignore", r".*multi-threaded, use of fork", DeprecationWarning)
    helpers = Helpers(channel)
    namespace: Frame = {}
    end_fd = os.dup(1)
    own_pid = os.getpid()
    output, errors = sys.stdout, sys.stderr
    cell = 0
    while os.getpid() == own_pid:  # a process that the script forked has nothing to serve
        try:
            request = channel.receive()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        if request["op"] == "init":
            namespace = _namespace(helpers, request["helpers"])
            channel.send(type="ready", v=VERSION)
        elif request["op"] == "eval":
            cell += 1
            helpers.open(request["token"])
            channel.send(type="started")
            kind, code = _run(f"<cell {cell}>", request["script"], namespace)
            helpers.close()
            sys.stdout, sys.stderr = output, errors
            if os.getpid() != own_pid:
                os._exit(code & 0xFF)
            os.write(end_fd, request["end"].encode())
            if kind is not None:
                channel.send(type="exception", kind=kind)
            channel.send(type="done", exit_code=code, token=request["token"])
            if kind == "interrupted":
                return  # whoever interrupts gives the state up
        else:
            channel.send(type="bye")
            return


def _namespace(helpers: Helpers, names: dict[str, Sequence[str]]) -> Frame:
    """What scripts see: a module called `__main__`, so that what they define can be pickled."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.path.insert(0, "")
    builtins.input = _no_input
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = vars(module)
    namespace["ToolError"] = ToolError
    namespace.update({name: helpers.named(name, order) for name, order in names.items()})
    return namespace


def _no_input(prompt: object = "") -> NoReturn:
    raise UnsupportedInput("input() has no answer here: put what is needed into the script")


def _run(name: str, script: str, namespace: Frame) -> tuple[str | None, int]:
    """How a script ended: the kind of what it raised, if anything, and its exit code."""
    linecache.cache[name] = (len(script), None, script.splitlines(True), name)
    kind: str | None = None
    code = 0
    try:
        exec(compile(script, name, "exec"), namespace)  # noqa: S102 - this is what it is for
    except SystemExit as exc:
        kind, code = "system_exit", _exit_code(exc.code)
    except KeyboardInterrupt:
        kind, code = "interrupted", INTERRUPTED
    except BaseException as exc:  # whatever a script raises is its own end, and not the kernel's
        kind = "unsupported_input" if isinstance(exc, UnsupportedInput) else "error"
        code = 1
        below = exc.__traceback__.tb_next if exc.__traceback__ is not None else None
        traceback.print_exception(type(exc), exc, below, file=sys.__stderr__)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a script may put anything there
            stream.flush()
    return kind, code


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.__stderr__)
    return 1


def _end_with(end: socket.socket) -> None:
    """End with everything that was started, when the other side has gone in the middle of it."""
    watch = select.poll()
    watch.register(end, 0)  # a hang-up is told in any case
    while not watch.poll():
        pass
    os.kill(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
