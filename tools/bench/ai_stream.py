"""`bazel run //tools/bench:ai_stream`: what lemon_ai's stream costs beside a bare reader.

The scripted provider runs in a process of its own. lemon_ai and aiohttp alone send it the very same
request and read the very same bytes; the bare reader decodes nothing of what it reads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import aiohttp
import anyio
from pydantic import SecretStr

from lemon_ai import Client, Context, Model, StreamDone, StreamOptions, TextDelta, UserMessage
from lemon_ai.testing import FakeProviderServer, RecordedRequest, Turn
from lemon_ai.testing.wires import WIRES
from lemon_core.testing import socket_dir
from tools.bench.load import closed_loop
from tools.bench.model import MODEL, running_provider
from tools.bench.processes import BenchError
from tools.bench.stats import Load, Timing, middle_share, percentile
from tools.bench.table import Aim, Row, at_least, at_most, machine_facts, show


@dataclass(frozen=True, slots=True)
class Api:
    """A wire API by one provider that speaks it, and the aims of its stream.

    `share` is of the bare reader's tokens per second, `times` of its processor time.
    """

    provider: str
    share: Aim
    times: Aim


# One for each form of stream; Azure's is that of Responses, Vertex's that of Google. Google repeats
# a whole response in each event, and Bedrock's frames have two checksums each.
APIS: Final[Mapping[str, Api]] = {
    "openai_completions": Api("openrouter", at_least(0.5), at_most(2.5)),
    "openai_responses": Api("openai", at_least(0.5), at_most(2.5)),
    "anthropic_messages": Api("anthropic", at_least(0.5), at_most(2.5)),
    "google_generative_ai": Api("google", at_least(0.35), at_most(4)),
    "bedrock_converse_stream": Api("amazon_bedrock", at_least(0.25), at_most(5)),
}
# In milliseconds, by how many streams there are at once.
FIRST_TOKEN_AIMS: Final[Mapping[int, Aim]] = {1: at_most(1), 8: at_most(2)}
AT_ONCE: Final = (1, 8)
TOKENS: Final = 200
PACED_TOKENS: Final = 3
PACE_MS: Final = 5
# The kinds take turns this often, so that what else the machine does hits all of them.
ROUNDS: Final = 5

_FIRST: Final = "word0 "
QUICK: Final[dict[str, Any]] = {"text": [_FIRST, *(f"word{n} " for n in range(1, TOKENS))]}
PACED: Final[dict[str, Any]] = {"text": QUICK["text"][:PACED_TOKENS], "pace_ms": PACE_MS}
_CONTEXT: Final = Context(
    system_prompt="Be brief.", messages=[UserMessage(content="Say hello.", timestamp=1)]
)
_OPTIONS: Final = StreamOptions(api_key=SecretStr("bench-key"))

Reader = Literal["lemon_ai", "bare"]
Kind = Callable[[], Awaitable[Timing]]


@dataclass(frozen=True, slots=True)
class Key:
    """Which loads belong together: `paced` are those for first tokens."""

    api: str
    at_once: int
    reader: Reader
    paced: bool = False


Measured = dict[Key, list[Load]]
"""The loads of each round."""


def model_of(api: str, origin: str) -> Model:
    """A model of this API at the scripted provider."""
    return Model(
        id=MODEL,
        api=api,
        provider=APIS[api].provider,
        base_url=f"{origin}{WIRES[api].base_path}",
        context_window=200_000,
        max_tokens=8_000,
    )


async def read_with_lemon(client: Client, model: Model, tokens: int) -> Timing:
    """One answer through lemon_ai, every event of it."""
    began, first, count = time.perf_counter(), 0.0, 0
    async with client.stream(model, _CONTEXT, _OPTIONS) as stream:
        while batch := await stream.next_batch():
            for event in batch:
                if isinstance(event, TextDelta):
                    first = first or time.perf_counter() - began
                    count += 1
    took = time.perf_counter() - began
    if not isinstance(stream.terminal, StreamDone) or count != tokens:
        raise BenchError(f"{model.api}: {count} of {tokens} tokens came: {stream.terminal}")
    return Timing(first, took)


async def read_bare(http: aiohttp.ClientSession, origin: str, request: RecordedRequest) -> Timing:
    """The same answer as bytes."""
    names = ("content-type", "accept", "authorization", "x-api-key", "x-goog-api-key")
    headers = {name: request.headers[name] for name in names if name in request.headers}
    began, first = time.perf_counter(), 0.0
    async with http.post(
        f"{origin}{request.raw_path}", data=request.raw_body, headers=headers
    ) as answer:
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            if not first and _FIRST.encode() in chunk:
                first = time.perf_counter() - began
    return Timing(first, time.perf_counter() - began)


async def requests_of(client: Client) -> Mapping[str, RecordedRequest]:
    """What lemon_ai sends for each API."""
    async with FakeProviderServer(default=Turn(text="ok")) as fake:
        for api in APIS:
            await client.complete(model_of(api, fake.origin), _CONTEXT, _OPTIONS)
        return {request.api: request for request in fake.requests}


@asynccontextmanager
async def readers(paced: bool) -> AsyncIterator[Mapping[tuple[str, Reader], Kind]]:
    """How each API's answer is read, by API and reader, from a provider started for the block."""
    tokens = PACED_TOKENS if paced else TOKENS
    connector = aiohttp.TCPConnector(limit=0)
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(socket_dir())
        origin = await stack.enter_async_context(
            running_provider(scratch, PACED if paced else QUICK)
        )
        client = await stack.enter_async_context(Client(env={}))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        found: dict[tuple[str, Reader], Kind] = {}
        for api, request in (await requests_of(client)).items():
            model = model_of(api, origin)
            found[api, "lemon_ai"] = partial(read_with_lemon, client, model, tokens)
            found[api, "bare"] = partial(read_bare, http, origin, request)
        yield found


async def measure(answers: int) -> Measured:
    """The loads of every API and reader, each with about `answers` answers in all."""
    found: Measured = {}
    for paced in (False, True):
        async with readers(paced) as kinds:
            for one in kinds.values():
                await one()  # connections and caches
            for at_once in AT_ONCE:
                for _ in range(ROUNDS):
                    for (api, reader), one in kinds.items():
                        load = await closed_loop(
                            one,
                            at_once=at_once,
                            count=max(1, answers // ROUNDS),
                            spread_s=PACED_TOKENS * PACE_MS / 1000 if paced else 0.0,
                            cpu_seconds=time.process_time,
                        )
                        found.setdefault(Key(api, at_once, reader, paced), []).append(load)
    return found


def rows(measured: Measured) -> list[Row]:
    """The table, ratios first."""
    places = [(api, at_once) for api in APIS for at_once in AT_ONCE]
    shares = [_share(measured, *place) for place in places]
    times = [_times(measured, api) for api in APIS]
    firsts = [_first_token(measured, *place) for place in places]
    plain = [row for api in APIS for row in _processor(measured, api)]
    plain += [row for place in places for row in _tokens(measured, *place)]
    return [*shares, *times, *firsts, *plain]


def _share(measured: Measured, api: str, at_once: int) -> Row:
    lemon, bare = _both(measured, api, at_once, lambda load: load.per_second)
    name = f"share of bare aiohttp's tokens, {api}, {at_once} at once"
    return Row(name, middle_share(lemon, bare), "", APIS[api].share)


def _times(measured: Measured, api: str) -> Row:
    lemon, bare = _both(measured, api, AT_ONCE[-1], lambda load: load.cpu_ms_per_run)
    name = f"processor per token: times bare aiohttp's, {api}"
    return Row(name, middle_share(lemon, bare), "", APIS[api].times)


def _processor(measured: Measured, api: str) -> Iterator[Row]:
    both = _both(measured, api, AT_ONCE[-1], lambda load: load.cpu_ms_per_run * 1000 / TOKENS)
    for name, values in zip(("processor per token", "bare aiohttp's"), both, strict=True):
        yield Row(f"{name}, {api}", percentile(values, 50), "µs")


def _first_token(measured: Measured, api: str, at_once: int) -> Row:
    lemon, bare = _both(measured, api, at_once, lambda load: load.first_token_ms.p50, paced=True)
    value = percentile(lemon, 50) - percentile(bare, 50)
    name = f"first token beyond bare aiohttp's, {api}, {at_once} at once"
    return Row(name, value, "ms", FIRST_TOKEN_AIMS[at_once])


def _tokens(measured: Measured, api: str, at_once: int) -> Iterator[Row]:
    lemon, bare = _both(measured, api, at_once, lambda load: load.per_second * TOKENS)
    yield Row(f"tokens, {api}, {at_once} at once", percentile(lemon, 50), "1/s")
    yield Row(f"bare aiohttp, {api}, {at_once} at once", percentile(bare, 50), "1/s")


def _both(
    measured: Measured,
    api: str,
    at_once: int,
    value: Callable[[Load], float],
    *,
    paced: bool = False,
) -> tuple[list[float], list[float]]:
    """What each round gave, through lemon_ai and bare."""
    lemon = measured[Key(api, at_once, "lemon_ai", paced)]
    bare = measured[Key(api, at_once, "bare", paced)]
    return [value(load) for load in lemon], [value(load) for load in bare]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 when everything could be measured."""
    parser = argparse.ArgumentParser(prog="ai_stream", description="What lemon_ai's stream costs.")
    parser.add_argument("--runs", type=int, default=60, help="answers of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    try:
        measured = anyio.run(measure, max(1, arguments.runs))
    except BenchError as exc:
        print(f"ai_stream: {exc}", file=sys.stderr)
        return 1
    facts = {"tokens_per_answer": TOKENS, **machine_facts(began)}
    print(show(rows(measured), facts, as_document=arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
