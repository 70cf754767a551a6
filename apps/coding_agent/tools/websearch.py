"""`websearch`: Brave's results or Perplexity's answer, as data from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coding_agent.tools.toolset import ToolDef, ToolEnv, int_param, schema, text_param
from coding_agent.web.http import FetchFailed, request_json
from coding_agent.web.services import Web
from lemon_agent import AgentToolResult, ToolCallContext, ToolError
from lemon_agent.external_content import trust_metadata, untrusted_json_result, wrap_web_content
from lemon_core.config.tools import SearchProvider
from lemon_core.util import canonical_json

MAX_QUERY_CHARS: Final = 500
MAX_CHARS: Final = 12_000
SNIPPET_CHARS: Final = 600
MAX_CITATIONS: Final = 8
_FRESHNESS: Final = re.compile(r"pd|pw|pm|py|\d{4}-\d\d-\d\dto\d{4}-\d\d-\d\d")
_OTHER: Final[Mapping[SearchProvider, SearchProvider]] = {
    "brave": "perplexity",
    "perplexity": "brave",
}
_KEY_NAMES: Final[Mapping[SearchProvider, tuple[str, ...]]] = {
    "brave": ("BRAVE_API_KEY",),
    "perplexity": ("PERPLEXITY_API_KEY", "OPENROUTER_API_KEY"),
}


async def _websearch(env: ToolEnv, call: ToolCallContext) -> AgentToolResult:
    web, query = env.shared.web, Query.of(call.params, env.shared.web)
    key = canonical_json([web.settings.search.provider, query.key()]).decode()
    kept = await web.searches.get(key)
    if kept is not None:
        return untrusted_json_result({**kept, "cached": True})
    result = await _answered(web, query)
    if "error" not in result:
        await web.searches.put(key, result)
    return untrusted_json_result(result)


WEBSEARCH: Final = ToolDef(
    name="websearch",
    description="Search the web. Results are data from outside.",
    parameters=schema(
        ("query",),
        query=text_param("What to look for."),
        count=int_param("How many results, 1 to 10.", minimum=1),
        country=text_param("Two letters, such as DE."),
        search_lang=text_param("Language of the results, such as de."),
        freshness=text_param("pd, pw, pm, py, or 2026-01-01to2026-01-31."),
    ),
    execute=_websearch,
    classes=frozenset({"external"}),
)


@dataclass(frozen=True, slots=True)
class Query:
    """A search as it is sent."""

    text: str
    count: int
    country: str | None = None
    language: str | None = None
    freshness: str | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any], web: Web) -> Query:
        """The search that a call asks for; raises `ToolError`."""
        text = params["query"].strip()
        if not text or len(text) > MAX_QUERY_CHARS:
            raise ToolError(f"query needs 1 to {MAX_QUERY_CHARS} characters")
        freshness = params.get("freshness") or None
        if freshness is not None and not _FRESHNESS.fullmatch(freshness):
            raise ToolError(
                "freshness is pd, pw, pm, py, or two dates such as 2026-01-01to2026-01-31"
            )
        count = min(params.get("count") or web.settings.search.max_results, 10)
        return cls(text, count, params.get("country"), params.get("search_lang"), freshness)

    def key(self) -> list[object]:
        """What tells it from other searches."""
        return [self.text, self.count, self.country, self.language, self.freshness]


async def _answered(web: Web, query: Query) -> dict[str, object]:
    settings = web.settings.search
    first = settings.provider
    second = settings.failover.provider or _OTHER[first]
    try:
        return await _asked(web, first, query)
    except _NoKey as exc:
        problem: ToolError = exc
    except FetchFailed as exc:
        problem = exc
    if settings.failover.enabled and second != first:
        told = {"attempted": True, "used": True, "from": first, "to": second}
        try:
            result = await _asked(web, second, query)
        except (_NoKey, FetchFailed):
            pass  # the first failure is the one to tell
        else:
            return {**result, "failover": {**told, "reason": str(problem)}}
    if isinstance(problem, _NoKey):
        return {"query": query.text, "error": problem.word, "message": str(problem)}
    raise problem


async def _asked(web: Web, provider: SearchProvider, query: Query) -> dict[str, object]:
    settings = web.settings.search
    own = provider == settings.provider
    found = await web.key(
        settings.api_key if own else None,
        settings.api_key_secret if own else None,
        _KEY_NAMES[provider],
    )
    if found is None:
        raise _NoKey(provider)
    if query.freshness and provider != "brave":
        raise FetchFailed("freshness is understood by Brave alone")
    await web.search_turn()
    began_ms = web.clock.monotonic_ms()
    if provider == "brave":
        result = await _brave(web, query, found[0])
    else:
        result = await _perplexity(web, query, *found)
    took_ms = web.clock.monotonic_ms() - began_ms
    return {"query": query.text, "provider": provider, "tookMs": took_ms, **result}


async def _brave(web: Web, query: Query, key: str) -> dict[str, object]:
    optional = {
        "country": query.country,
        "search_lang": query.language,
        "freshness": query.freshness,
    }
    answer = await request_json(
        "GET",
        web.brave_url,
        timeout_s=web.settings.search.timeout_seconds,
        headers={"X-Subscription-Token": key, "Accept": "application/json"},
        params={
            "q": query.text,
            "count": str(query.count),
            **{name: value for name, value in optional.items() if value},
        },
    )
    try:
        rows = answer.get("web", {}).get("results", [])
        results = [_result(row) for row in rows[: query.count] if isinstance(row, Mapping)]
    except (AttributeError, TypeError) as exc:
        raise FetchFailed("Brave answered with something that is no list of results") from exc
    while len(results) > 1 and sum(len(str(row)) for row in results) > MAX_CHARS:
        results.pop()
    fields = ["results.title", "results.description"]
    return {"count": len(results), "results": results, "trustMetadata": _trust(fields)}


async def _perplexity(web: Web, query: Query, key: str, found_as: str) -> dict[str, object]:
    settings = web.settings.search.perplexity
    through_openrouter = found_as == "OPENROUTER_API_KEY" or key.startswith("sk-or-")
    base = settings.base_url or (
        "https://openrouter.ai/api/v1" if through_openrouter else "https://api.perplexity.ai"
    )
    model = settings.model if through_openrouter else settings.model.removeprefix("perplexity/")
    answer = await request_json(
        "POST",
        f"{base.rstrip('/')}/chat/completions",
        timeout_s=web.settings.search.timeout_seconds,
        headers={"Authorization": f"Bearer {key}"},
        body={"model": model, "messages": [{"role": "user", "content": query.text}]},
    )
    try:
        content = str(answer["choices"][0]["message"]["content"])
        citations = [str(one) for one in answer.get("citations") or ()][:MAX_CITATIONS]
    except (AttributeError, KeyError, IndexError, TypeError) as exc:
        raise FetchFailed("Perplexity answered with something that is no answer") from exc
    return {
        "content": wrap_web_content(content[:MAX_CHARS], "web_search"),
        "truncated": len(content) > MAX_CHARS,
        "citations": [citation[:500] for citation in citations],
        "trustMetadata": _trust(["content"]),
    }


def _result(row: Mapping[str, Any]) -> dict[str, str]:
    plain = re.sub(r"</?strong>", "", str(row.get("description") or ""))
    found = {
        "title": wrap_web_content(str(row.get("title") or "")[:200], "web_search"),
        "url": str(row.get("url") or "")[:2_000],
        "description": wrap_web_content(plain[:SNIPPET_CHARS], "web_search"),
    }
    return {**found, "age": str(row["age"])[:50]} if row.get("age") else found


def _trust(fields: list[str]) -> dict[str, object]:
    return trust_metadata("web_search", fields, warning_included=False, key_style="camel_case")


class _NoKey(ToolError):
    """A provider cannot be asked for want of a key."""

    def __init__(self, provider: SearchProvider) -> None:
        names = " or ".join(_KEY_NAMES[provider])
        super().__init__(f"searching with {provider} needs a key: set the secret {names}")
        self.word = f"missing_{provider}_api_key"
