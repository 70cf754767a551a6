"""A small web on loopback: pages by path, and a name service that the tests set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from coding_agent.tests.harness import tool_env
from coding_agent.tools.toolset import ToolEnv
from coding_agent.web import Web
from lemon_core.clock import Clock, SystemClock
from lemon_core.config.tools import Web as WebSettings


@dataclass
class Names:
    """Answers look-ups: `hosts` in turn, the last answer again and again."""

    hosts: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def lookup(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.hosts.get(host)
        if not answers:
            raise OSError(f"{host}: name not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]


@dataclass
class Site:
    """The server: its answers by path, and what it was asked."""

    pages: dict[str, web.Response | Mapping[str, Any]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], Mapping[str, str], Any]] = field(default_factory=list)
    port: int = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.path, dict(request.headers), dict(request.query), body))
        page = self.pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="not here")
        if isinstance(page, web.Response):
            # A response object serves one request.
            return web.Response(status=page.status, headers=page.headers, body=page.body)
        return web.json_response(page)


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()


def web_env(
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    names: Names | None = None,
    secrets: Mapping[str, str] | None = None,
    cache: bool = False,
    brave_url: str = "http://127.0.0.1:1/",
    clock: Clock | None = None,
) -> ToolEnv:
    """The tools of a run whose web is this one."""
    env = tool_env(folder)
    given = secrets or {}

    async def fetch_secret(name: str) -> str | None:
        return given.get(name)

    made = Web(
        WebSettings.model_validate(settings or {}),
        fetch_secret,
        clock or SystemClock(),
        folder / "cache" if cache else None,
        lookup=(names or Names()).lookup,
        brave_url=brave_url,
    )
    return replace(env, shared=replace(env.shared, web=made))


def html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")


def redirect(target: str) -> web.Response:
    return web.Response(status=302, headers={"Location": target})
