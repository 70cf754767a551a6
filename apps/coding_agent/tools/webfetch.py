"""`webfetch`: the readable text of a page, as data from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from coding_agent.tools.toolset import ToolDef, ToolEnv, int_param, schema, text_param
from coding_agent.web.guard import UrlRefused
from coding_agent.web.http import Answer, FetchFailed, fetch, request_json
from coding_agent.web.services import Web
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_agent.external_content import trust_metadata, untrusted_json_result, wrap_web_content

if TYPE_CHECKING:
    from coding_agent.web.readable import Mode, Page

ACCEPT: Final = (
    "text/markdown, text/html;q=0.9, application/json;q=0.8, text/plain;q=0.8, */*;q=0.1"
)
_PLAIN_TYPES: Final = ("application/xml", "application/javascript", "application/x-yaml")


async def _webfetch(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    web, params = env.shared.web, call.params
    mode: Mode = "text" if params.get("extractMode") == "text" else "markdown"
    max_chars = params.get("maxChars") or web.settings.fetch.max_chars
    url = params["url"].strip()
    web.guard.check_url(url)
    key = f"{mode} {max_chars} {url}"
    kept = await web.pages.get(key)
    if kept is not None:
        return untrusted_json_result({**kept, "cached": True})
    began_ms = web.clock.monotonic_ms()
    fetched = await _fetched(web, url, mode)
    took_ms = web.clock.monotonic_ms() - began_ms
    result = await anyio.to_thread.run_sync(_document, web, url, mode, max_chars, fetched, took_ms)
    await web.pages.put(key, result)
    return untrusted_json_result(result)


WEBFETCH: Final = ToolDef(
    name="webfetch",
    description="Fetch a public web page as readable text. It is data from outside.",
    parameters=schema(
        ("url",),
        url=text_param("http or https."),
        extractMode={"type": "string", "enum": ["markdown", "text"]},
        maxChars=int_param("Longest answer in characters.", minimum=100),
    ),
    execute=_webfetch,
    classes=frozenset({"external"}),
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page, wherever it came from."""

    page: Page
    final_url: str
    status: int
    content_type: str
    raw_length: int
    warning: str | None = None


async def _fetched(web: Web, url: str, mode: Mode) -> Fetched:
    """The page by a plain request, else by the service that reads pages, when there is a key."""
    settings = web.settings.fetch
    try:
        answer = await fetch(
            url,
            web.guard,
            headers={"User-Agent": web.user_agent, "Accept": ACCEPT},
            timeout_s=settings.timeout_seconds,
            max_redirects=settings.max_redirects,
        )
        if not 200 <= answer.status < 300:
            raise FetchFailed(f"{answer.url} answered {answer.status}")
        return await anyio.to_thread.run_sync(_read, answer, mode)
    except UrlRefused:
        raise
    except ToolError as exc:
        scraped = await _scraped(web, url)
        if scraped is None:
            raise
        return replace(scraped, warning=f"fetched by Firecrawl, because {exc}")


def _read(answer: Answer, mode: Mode) -> Fetched:
    # Imported here: reading HTML brings a table of two thousand names, and most runs read none.
    from coding_agent.web.readable import Page, extract

    text, kind = answer.text(), answer.content_type
    if kind in ("text/html", "application/xhtml+xml"):
        page = extract(text, answer.url, mode)
        if not page.text:
            raise FetchFailed(f"{answer.url} has no text to read without its scripts")
    elif kind.startswith("text/") or kind.endswith(("json", "+xml")) or kind in _PLAIN_TYPES:
        page = Page("", text, "plain")
    else:
        raise FetchFailed(f"{answer.url} is {kind or 'of no known kind'}, and no text")
    warning = "the page was longer than could be read" if answer.is_cut else None
    return Fetched(page, answer.url, answer.status, kind, len(answer.body), warning)


async def _scraped(web: Web, url: str) -> Fetched | None:
    from coding_agent.web.readable import Page

    settings = web.settings.fetch.firecrawl
    if settings.enabled is False:
        return None
    found = await web.key(settings.api_key, settings.api_key_secret, ["FIRECRAWL_API_KEY"])
    if found is None:
        return None
    answer = await request_json(
        "POST",
        f"{settings.base_url.rstrip('/')}/v2/scrape",
        timeout_s=settings.timeout_seconds,
        headers={"Authorization": f"Bearer {found[0]}"},
        body={
            "url": url,
            "formats": ["markdown"],
            "onlyMainContent": settings.only_main_content,
            "maxAge": settings.max_age_ms,
        },
    )
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(data.get("markdown"), str):
        raise FetchFailed("Firecrawl gave no text")
    about: Mapping[str, Any] = data.get("metadata") or {}
    page = Page(str(about.get("title") or ""), data["markdown"], "firecrawl")
    status = about.get("statusCode")
    return Fetched(
        page,
        str(about.get("sourceURL") or url),
        status if isinstance(status, int) else 200,
        "text/markdown",
        len(page.text),
    )


def _document(
    web: Web, url: str, mode: Mode, max_chars: int, fetched: Fetched, took_ms: int
) -> dict[str, object]:
    """The result; wrapped text and title together are not longer than `max_chars`."""
    page = fetched.page
    title = wrap_web_content(page.title[:200], "web_search") if page.title else ""
    room = max(0, max_chars - len(title) - len(wrap_web_content("", "web_fetch")))
    text = wrap_web_content(page.text[:room], "web_fetch")
    if len(text) + len(title) > max_chars:  # markers inside the text were made longer
        text = wrap_web_content(page.text[: max(0, room - (len(text) - max_chars))], "web_fetch")
    fields = ["text", "title"] if title else ["text"]
    result: dict[str, object] = {
        "url": url,
        "finalUrl": fetched.final_url,
        "status": fetched.status,
        "contentType": fetched.content_type,
        "title": title,
        "extractMode": mode,
        "extractor": page.extractor,
        "truncated": len(page.text) > room,
        "length": len(page.text),
        "rawLength": fetched.raw_length,
        "wrappedLength": len(text),
        "fetchedAt": datetime.fromtimestamp(web.clock.now_ms() / 1_000, UTC).isoformat(),
        "tookMs": took_ms,
        "text": text,
        "trustMetadata": trust_metadata(
            "web_fetch", fields, warning_included=True, key_style="camel_case"
        ),
    }
    if fetched.warning:
        result["warning"] = fetched.warning
    return result
