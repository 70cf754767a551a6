"""The process that runs WASM modules: it is told a call in a line of JSON and answers in one.

It knows nothing of Lemon. A module gets memory, fuel and one function of the host, which asks the
parent for everything; what is not in its capabilities is refused there. There is no WASI: a module
that wants files, clocks or sockets of the system does not even start.

Parent: `{"op": "run", "path", "args", "fuel", "memory_bytes"}`, then `{"op": "answer", "value"}`
for each `{"op": "call", "request"}`. Worker: at the end `{"op": "done", "text", "is_error"}` or
`{"op": "failed", "reason", "message"}`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO, Final, NoReturn

MAX_TEXT_BYTES: Final = 5_242_880
MAX_MODULE_BYTES: Final = 33_554_432
MAX_KEPT: Final = 16


class Failed(Exception):
    """The call has no result; `reason` is the stable word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Worker:
    """Calls one after another; compiled modules are kept while their files are unchanged."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        import wasmtime

        self._wasmtime = wasmtime
        config = wasmtime.Config()
        config.consume_fuel = True
        self._engine = wasmtime.Engine(config)
        self._modules: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._requests, self._answers = requests, answers

    def serve(self) -> None:
        """Until the parent closes its end."""
        while (request := self._received()) is not None:
            try:
                answer = self._run(request)
            except Failed as exc:
                answer = {"op": "failed", "reason": exc.reason, "message": str(exc)}
            self._send(answer)

    # -- one call ----------------------------------------------------------------------------

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        wasmtime = self._wasmtime
        module = self._module(request["path"])
        store = wasmtime.Store(self._engine)
        store.set_fuel(request["fuel"])
        store.set_limits(
            memory_size=request["memory_bytes"], table_elements=100_000, instances=1, memories=1
        )
        try:
            exports = self._linked(module).instantiate(store, module).exports(store)
            guest = Guest(exports.get("memory"), exports.get("alloc"), wasmtime)
            run = exports.get("run")
            if not isinstance(run, wasmtime.Func):
                raise Failed("abi", "the module exports no function run")
            pointer, size = guest.write(store, json.dumps(request["args"]).encode())
            said = guest.read(store, run(store, pointer, size))
        except (wasmtime.Trap, wasmtime.WasmtimeError, IndexError, TypeError) as exc:
            raise _failure(exc, store) from exc
        return _result(said)

    def _module(self, path: str) -> Any:
        status = os.stat(path)
        if status.st_size > MAX_MODULE_BYTES:
            raise Failed("module", f"{path} is larger than {MAX_MODULE_BYTES >> 20} MiB")
        mark = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._modules.get(path)
        if known is not None and known[0] == mark:
            return known[1]
        try:
            with open(path, "rb") as file:
                module = self._wasmtime.Module(self._engine, file.read(MAX_MODULE_BYTES))
        except (OSError, self._wasmtime.WasmtimeError) as exc:
            raise Failed("module", f"{path} is no module: {_line(exc)}") from exc
        if len(self._modules) >= MAX_KEPT:
            self._modules.clear()
        self._modules[path] = (mark, module)
        return module

    def _linked(self, module: Any) -> Any:
        wasmtime = self._wasmtime
        for each in module.imports:
            if (each.module, each.name) != ("lemon", "call"):
                raise Failed("imports", f"the module wants {each.module}.{each.name}")
        linker = wasmtime.Linker(self._engine)
        i32, i64 = wasmtime.ValType.i32(), wasmtime.ValType.i64()
        kind = wasmtime.FuncType([i32, i32], [i64])
        linker.define_func("lemon", "call", kind, self._called, access_caller=True)
        return linker

    def _called(self, caller: Any, pointer: int, size: int) -> int:
        """The one function of the host: a request in JSON, its answer in JSON."""
        guest = Guest(caller.get("memory"), caller.get("alloc"), self._wasmtime)
        try:
            request = json.loads(guest.read(caller, (pointer << 32) | size))
        except ValueError as exc:
            answer: object = {"error": f"the request is not JSON: {exc}"}
        else:
            self._send({"op": "call", "request": request})
            reply = self._received()
            if reply is None:
                os._exit(0)  # the parent has gone
            answer = reply["value"]
        at, length = guest.write(caller, json.dumps(answer).encode())
        return _signed((at << 32) | length)

    # -- the pipe ----------------------------------------------------------------------------

    def _received(self) -> dict[str, Any] | None:
        line = self._requests.readline()
        return json.loads(line) if line else None

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message).encode() + b"\n")
        self._answers.flush()


class Guest:
    """The memory of a module, and its own way of giving room in it."""

    def __init__(self, memory: Any, alloc: Any, wasmtime: Any) -> None:
        if not isinstance(memory, wasmtime.Memory):
            raise Failed("abi", "the module exports no memory")
        if not isinstance(alloc, wasmtime.Func):
            raise Failed("abi", "the module exports no function alloc")
        self._memory, self._alloc = memory, alloc

    def write(self, store: Any, data: bytes) -> tuple[int, int]:
        """Where the module has put these bytes."""
        pointer = self._alloc(store, len(data)) & 0xFFFF_FFFF
        if pointer + len(data) > self._memory.data_len(store):
            raise Failed("abi", "alloc gave room outside of the memory")
        self._memory.write(store, data, pointer)
        return pointer, len(data)

    def read(self, store: Any, packed: object) -> bytes:
        """The bytes that a pointer (high half) and a length (low half) mean."""
        if not isinstance(packed, int):
            raise Failed("abi", "run gave no 64-bit number")
        pointer, size = (packed >> 32) & 0xFFFF_FFFF, packed & 0xFFFF_FFFF
        if pointer + size > self._memory.data_len(store):
            raise Failed("abi", "the result lies outside of the memory")
        if size > MAX_TEXT_BYTES:
            raise Failed("abi", f"the result is larger than {MAX_TEXT_BYTES >> 20} MiB")
        return bytes(self._memory.read(store, pointer, pointer + size))


def _result(said: bytes) -> dict[str, Any]:
    try:
        value = json.loads(said)
    except ValueError as exc:
        raise Failed("abi", f"the result is not JSON: {exc}") from exc
    match value:
        case {"error": str(text)}:
            return {"op": "done", "text": text, "is_error": True}
        case {"text": str(text)} | str(text):
            return {"op": "done", "text": text, "is_error": False}
        case _:
            return {"op": "done", "text": json.dumps(value, ensure_ascii=False), "is_error": False}


def _failure(exc: Exception, store: Any) -> Failed:
    if isinstance(exc, Failed):
        return exc
    text = _line(exc)
    if store.get_fuel() == 0 or "fuel" in text:
        return Failed("fuel", "the module used up its fuel")
    if "memory" in text and ("limit" in text or "exceeds" in text):
        return Failed("memory", f"the module wants more memory than it may have: {text}")
    return Failed("trap", text)


def _line(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[-1] if lines else type(exc).__name__)[:500]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def main() -> NoReturn:
    """Serve the pipe that the parent has given; nothing else is printed to it."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Worker(requests, answers).serve()
    sys.exit(0)


if __name__ == "__main__":
    main()
