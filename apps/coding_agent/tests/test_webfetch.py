"""`webfetch` against a server on loopback (specification coding_agent 7 and 11.17)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coding_agent.tests.harness import call
from coding_agent.tests.web_server import Names, Site, html, redirect, serving, web_env
from coding_agent.tools.toolset import ToolEnv
from coding_agent.tools.webfetch import WEBFETCH
from coding_agent.web.guard import UrlRefused, page_guard
from coding_agent.web.readable import extract
from lemon_agent import ToolError
from lemon_agent.external_content import BEGIN, END
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

HERE = {"fetch": {"allowed_hostnames": ["127.0.0.1"]}}
PAGE = (
    "<html><head><title>A  title</title><style>x{}</style></head><body><nav>menu</nav>"
    "<main><h1>Head</h1><p>One <b>two</b> <a href='/b'>three</a>.<ul><li>a<li>b</ul>"
    "<pre>x\n  y</pre><script>run()</script><p hidden>unseen</p>" + "<p>word</p>" * 60 + "</main>"
    "<footer>foot</footer></body></html>"
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as served:
        yield served


async def fetched(env: ToolEnv, url: str, **params: Any) -> dict[str, Any]:
    result = await call(WEBFETCH, env, url=url, **params)
    assert result.trust == "untrusted"
    found: dict[str, Any] = json.loads(result.text)
    return found


@pytest.mark.behaviour("coding_agent.17")
async def test_a_page_comes_as_wrapped_text_of_its_content(tmp_path: Path, site: Site) -> None:
    site.pages["/a"] = html(PAGE)
    found = await fetched(web_env(tmp_path, HERE), site.url("/a"))
    assert (found["status"], found["contentType"]) == (200, "text/html")
    assert (found["extractMode"], found["extractor"]) == ("markdown", "content")
    assert found["text"].count(BEGIN) == found["text"].count(END) == 1
    assert found["title"].count(BEGIN) == 1
    assert "A title" in found["title"]
    for part in ("# Head", f"One two [three]({site.url('/b')}).", "- a\n- b", "```\nx\n  y\n```"):
        assert part in found["text"]
    for part in ("menu", "foot", "run()", "unseen", "x{}"):
        assert part not in found["text"]
    assert found["trustMetadata"]["untrusted"] is True
    assert found["trustMetadata"]["wrappedFields"] == ["text", "title"]
    assert not found["truncated"]
    assert site.requests[0][1]["User-Agent"].startswith("Mozilla/5.0 (compatible; Lemon/")
    plain = await fetched(web_env(tmp_path, HERE), site.url("/a"), extractMode="text")
    assert "# Head" not in plain["text"]
    assert "](" not in plain["text"]


async def test_the_answer_keeps_to_its_length_and_ends_no_marker(
    tmp_path: Path, site: Site
) -> None:
    site.pages["/a"] = web.Response(text=f"{END}" * 200, content_type="text/plain")
    found = await fetched(web_env(tmp_path, HERE), site.url("/a"), maxChars=1_500)
    assert found["truncated"] is True
    assert len(found["text"]) + len(found["title"]) <= 1_500
    assert found["text"].count(END) == 1
    assert found["extractor"] == "plain"


async def test_json_passes_and_what_is_no_text_is_refused(tmp_path: Path, site: Site) -> None:
    site.pages["/j"] = {"a": 1}
    site.pages["/b"] = web.Response(body=b"\x89PNG", content_type="image/png")
    site.pages["/s"] = html("<script>only</script>")
    env = web_env(tmp_path, HERE)
    assert '{"a": 1}' in (await fetched(env, site.url("/j")))["text"]
    for path, problem in {
        "/b": "is image/png, and no text",
        "/s": "has no text to read",
        "/none": "answered 404",
    }.items():
        with pytest.raises(ToolError, match=problem):
            await call(WEBFETCH, env, url=site.url(path))


async def test_a_huge_body_is_read_in_part(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coding_agent.web.http.MAX_BODY_BYTES", 100_000)
    site.pages["/a"] = web.Response(text="x" * 3_000_000, content_type="text/plain")
    found = await fetched(web_env(tmp_path, HERE), site.url("/a"))
    assert found["rawLength"] == 100_000
    assert "longer than could be read" in found["warning"]


async def test_pages_are_kept_for_some_minutes(tmp_path: Path, site: Site) -> None:
    site.pages["/a"] = html(PAGE)
    env = web_env(tmp_path, HERE, cache=True)
    await fetched(env, site.url("/a"))
    assert (await fetched(env, site.url("/a")))["cached"] is True
    clock = FakeClock()
    clock.set_wall(env.shared.web.clock.now_ms())
    again = web_env(tmp_path, HERE, cache=True, clock=clock)
    assert (await fetched(again, site.url("/a")))["cached"] is True
    assert (tmp_path / "cache" / "webfetch.json").stat().st_mode & 0o777 == 0o600
    assert "cached" not in await fetched(again, site.url("/a"), maxChars=5_000)
    await clock.advance(15 * 60_000)
    assert "cached" not in await fetched(again, site.url("/a"))
    (tmp_path / "cache" / "webfetch.json").write_text("{")
    assert "cached" not in await fetched(web_env(tmp_path, HERE, cache=True), site.url("/a"))


PRIVATE = [
    "http://127.0.0.1/",
    "http://localhost/",
    "http://x.localhost/",
    "http://printer.local/",
    "http://db.internal/",
    "http://10.1.2.3/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://169.254.1.1/",
    "http://100.64.0.1/",
    "http://0.0.0.0/",
    "http://224.0.0.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[fc00::1]/",
    "http://[fe80::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
]
METADATA = [
    "http://169.254.169.254/latest",
    "http://metadata.google.internal/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://2852039166/",
]


@pytest.mark.behaviour("coding_agent.17", "coding_agent.109")
@pytest.mark.parametrize("url", PRIVATE + METADATA)
async def test_every_private_form_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UrlRefused, match="not public"):
        await call(WEBFETCH, web_env(tmp_path), url=url)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/", "http://", "http://u:p@x/", "x", "http://x:0/", "http://[/"],
)
async def test_what_is_no_web_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UrlRefused):
        await call(WEBFETCH, web_env(tmp_path), url=url)


@pytest.mark.behaviour("coding_agent.17")
@pytest.mark.parametrize("url", METADATA)
async def test_a_clouds_own_addresses_are_refused_even_when_private_ones_are_not(
    tmp_path: Path, url: str
) -> None:
    names = Names(
        {"metadata.google.internal": [["8.8.8.8"]], "friend.example": [["169.254.169.254"]]}
    )
    relaxed = {"fetch": {"allow_private_network": True}}
    for address in (url, "http://friend.example/"):
        with pytest.raises(UrlRefused):
            await call(WEBFETCH, web_env(tmp_path, relaxed, names=names), url=address)


@pytest.mark.behaviour("coding_agent.17", "coding_agent.109")
async def test_a_name_that_leads_inside_is_refused(tmp_path: Path, site: Site) -> None:
    """Alone, or among public addresses."""
    site.pages["/"] = html(PAGE)
    names = Names(
        {
            "inside.example": [["127.0.0.1"]],
            "mixed.example": [["93.184.216.34", "127.0.0.1"]],
            "mapped.example": [["::ffff:10.0.0.1"]],
        }
    )
    env = web_env(tmp_path, names=names)
    for host in ("inside.example", "mixed.example", "mapped.example"):
        with pytest.raises(UrlRefused, match=f"{host} is, or leads to"):
            await call(WEBFETCH, env, url=site.url("/", host))
    assert site.requests == []


@pytest.mark.behaviour("coding_agent.109")
async def test_the_address_that_was_judged_is_the_one_connected_to(
    tmp_path: Path, site: Site
) -> None:
    """One look-up per hop: there is none between check and use."""
    names = Names({"there.example": [["127.0.0.1"], ["10.0.0.1"]]})
    site.pages["/"] = html(PAGE)
    env = web_env(tmp_path, {"fetch": {"allowed_hostnames": ["there.example"]}}, names=names)
    found = await fetched(env, site.url("/", "there.example"))
    assert found["status"] == 200
    assert names.asked == ["there.example"]
    assert site.requests[0][1]["Host"] == f"there.example:{site.port}"
    guard = page_guard(Names({"turns.example": [["93.184.216.34"], ["127.0.0.1"]]}).lookup)
    assert await guard.addresses("turns.example", 80) == ["93.184.216.34"]
    with pytest.raises(UrlRefused):
        await guard.addresses("turns.example", 80)


@pytest.mark.behaviour("coding_agent.17", "coding_agent.109")
async def test_each_hop_of_a_redirect_is_judged(tmp_path: Path, site: Site) -> None:
    env = web_env(tmp_path, HERE, names=Names({"inside.example": [["127.0.0.1"]]}))
    inside = ("http://169.254.169.254/", "http://localhost/", "http://inside.example/")
    for target in (*inside, "file:///x"):
        site.pages["/go"] = redirect(target)
        with pytest.raises(UrlRefused):
            await call(WEBFETCH, env, url=site.url("/go"))
    site.pages |= {f"/{n}": redirect(f"/{n + 1}") for n in range(5)}
    site.pages["/3"] = html(PAGE)
    assert (await fetched(env, site.url("/0")))["finalUrl"] == site.url("/3")
    site.pages["/3"] = redirect("/4")
    env = web_env(tmp_path, HERE)  # nothing is kept from before
    for start, problem in {"/0": "more than 3 redirects", "/loop": "redirects to itself"}.items():
        site.pages["/loop"] = redirect("/loop#again")
        with pytest.raises(ToolError, match=problem):
            await call(WEBFETCH, env, url=site.url(start))


async def test_a_page_that_cannot_be_read_is_asked_of_firecrawl(tmp_path: Path, site: Site) -> None:
    site.pages["/v2/scrape"] = {
        "data": {"markdown": "scraped", "metadata": {"title": "T", "statusCode": 200}}
    }
    settings = {"fetch": {**HERE["fetch"], "firecrawl": {"base_url": site.url("")}}}
    env = web_env(tmp_path, settings, secrets={"FIRECRAWL_API_KEY": "k"})
    found = await fetched(env, site.url("/none"))
    assert found["extractor"] == "firecrawl"
    assert "scraped" in found["text"]
    assert "answered 404" in found["warning"]
    path, headers, _, body = site.requests[-1]
    assert (path, headers["Authorization"]) == ("/v2/scrape", "Bearer k")
    assert body["url"] == site.url("/none")
    count = len(site.requests)
    with pytest.raises(UrlRefused):
        await call(WEBFETCH, env, url="http://10.0.0.1/")
    assert len(site.requests) == count


def test_broken_markup_is_read_as_far_as_it_goes() -> None:
    page = extract("<p>a<div>b</p></nav></main><li>c<script>x", "http://x/", "markdown")
    assert page.text.split() == ["a", "b", "-", "c"]
    assert extract("", "http://x/", "text").text == ""
    assert (
        "](javascript" not in extract("<a href='javascript:x'>a</a>", "http://x", "markdown").text
    )
