"""Where keys come from (specification 10.3): variables, configuration, stored secrets, pools."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest

from lemon_agent.runtime.secret_cache import FRESH_MS
from lemon_agent.tests.vault import vault
from lemon_ai.oauth import OAuthError
from lemon_ai.types import ErrorInfo
from lemon_core.config.model import Provider
from lemon_core.config.provider_routing import ProviderRouting

pytestmark = pytest.mark.anyio

PAYLOAD = json.dumps({"type": "anthropic_oauth", "access_token": "fresh"})
URL = "http://box.example/v1"
CANARY = "sk-canary-4711"
REFUSED = ErrorInfo(category="auth", message="no")


async def open_payload(
    name: str, value: str, persist: Callable[[str, str], Awaitable[None]]
) -> str | None:
    """An OAuth resolver as lemon_ai's is."""
    try:
        document = json.loads(value)
    except ValueError:
        return None
    if document.get("expired"):
        raise OAuthError("refused", "x", f"{name} cannot be renewed")
    if document.get("old"):
        await persist(name, PAYLOAD)
    token: str = document["access_token"]
    return token


def pool(**more: object) -> ProviderRouting:
    return ProviderRouting.model_validate(
        {
            "default_pool": "team",
            "credential_pools": {
                "team": {
                    "credentials": {"openai": ["secret:a", "env:B_KEY", "c", "secret:gone"]},
                    **more,
                }
            },
        }
    )


@pytest.mark.behaviour("lemon_agent.18")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"env", "config", "named", "default"}, "env"),
        ({"config", "named", "default"}, "config"),
        ({"named", "default"}, "named"),
        ({"default"}, "default"),
        (set(), None),
    ],
)
async def test_places_count_in_their_order(given: set[str], expected: str | None) -> None:
    row = Provider(
        api_key="config" if "config" in given else None,
        api_key_secret="my_key" if "named" in given else None,
    )
    stored = {"my_key": "named", "llm_groq_api_key": "default"}
    async with vault(
        {"groq": row},
        environ={"GROQ_API_KEY": "env"} if "env" in given else {},
        secrets={k: v for k, v in stored.items() if v in given},
    ) as v:
        assert (await v.credentials.find("groq")).api_key == expected
        assert await v.credentials.has_credentials("groq") is (expected is not None)


@pytest.mark.behaviour("lemon_agent.18")
async def test_no_other_vendors_variable_stands_in() -> None:
    async with vault(environ={"OPENAI_API_KEY": "mine"}) as v:
        for provider in ("anthropic", "openai_codex", "azure_openai_responses", "google", "groq"):
            found = await v.credentials.find(provider)
            assert found.api_key is None
            assert found.reason


async def test_a_secret_that_is_called_like_a_variable_counts_last() -> None:
    async with vault(secrets={"GEMINI_API_KEY": "imported"}) as v:
        assert (await v.credentials.find("google")).api_key == "imported"
        assert await v.credentials.has_credentials("google")


async def test_a_named_secret_may_be_a_variable() -> None:
    row = Provider(api_key_secret="MY_VARIABLE")
    async with vault({"groq": row}, environ={"MY_VARIABLE": "here"}) as v:
        assert await v.credentials.has_credentials("groq")
        assert (await v.credentials.find("groq")).api_key == "here"


@pytest.mark.behaviour("lemon_agent.18")
@pytest.mark.parametrize("provider", ["anthropic", "openai_codex"])
async def test_oauth_takes_the_payload_and_no_key(provider: str) -> None:
    row = Provider(auth_source="oauth", api_key="plain", base_url=URL)
    environ = {"ANTHROPIC_API_KEY": "env", "CHATGPT_TOKEN": "env"}
    default = f"llm_{provider}_api_key"
    async with vault({provider: row}, environ=environ, oauth=open_payload) as v:
        assert (await v.credentials.find(provider)).api_key is None
        await v.stored.inner.set(default, "sk-plain")
        await v.clock.advance(FRESH_MS)
        assert "OAuth payload is needed" in ((await v.credentials.find(provider)).reason or "")
        await v.stored.inner.set(default, PAYLOAD)
        await v.clock.advance(FRESH_MS)
        assert (await v.credentials.find(provider)).api_key == "fresh"
    named = Provider(auth_source="oauth", oauth_secret="o", api_key_secret="k", base_url=URL)
    other = json.dumps({"type": "x_oauth", "access_token": "other"})
    stored = {"o": PAYLOAD, "k": other, default: other}
    async with vault({provider: named}, secrets=stored, oauth=open_payload) as v:
        assert (await v.credentials.find(provider)).api_key == "fresh"
    by_key = Provider(auth_source="oauth", api_key_secret="k", base_url=URL)
    async with vault({provider: by_key}, secrets=stored, oauth=open_payload) as v:
        assert (await v.credentials.find(provider)).api_key == "other"


@pytest.mark.behaviour("lemon_agent.18")
@pytest.mark.parametrize("provider", ["anthropic", "openai_codex"])
async def test_a_plain_key_is_no_oauth_payload(
    provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = Provider(auth_source="api_key", api_key_secret="k", base_url=URL)
    async with vault({provider: row}, secrets={"k": PAYLOAD}, oauth=open_payload) as v:
        with caplog.at_level(logging.WARNING, logger="lemon"):
            found = await v.credentials.find(provider)
            await v.credentials.find(provider)
        assert (found.api_key, found.reason) == (
            None,
            "a plain key is needed, not an OAuth payload",
        )
        assert [r.message for r in caplog.records].count("credentials.none") == 1
    async with vault({provider: row}, secrets={"k": "sk"}, oauth=open_payload) as v:
        assert (await v.credentials.find(provider)).api_key == "sk"


@pytest.mark.behaviour("lemon_agent.18")
async def test_codex_is_not_guessed_at() -> None:
    environ = {"OPENAI_CODEX_API_KEY": "k", "CHATGPT_TOKEN": "k"}
    stored = {"llm_openai_codex_api_key": PAYLOAD}
    async with vault(
        {"openai-codex": Provider(base_url=URL)}, environ=environ, secrets=stored
    ) as v:
        found = await v.credentials.find("codex")
        assert (found.api_key, found.reason) == (None, "auth_source is not set: oauth or api_key")
        assert not await v.credentials.has_credentials("codex")


async def test_a_payload_that_was_renewed_is_stored_and_one_that_cannot_be_is_none() -> None:
    old = json.dumps({"type": "x_oauth", "access_token": "soon", "old": True})
    broken = json.dumps({"type": "x_oauth", "expired": True})
    row = Provider(api_key_secret="k")
    async with vault({"groq": row}, secrets={"k": old}, oauth=open_payload) as v:
        assert (await v.credentials.find("groq")).api_key == "soon"
        assert await v.stored.inner.get("k") == PAYLOAD
        assert (await v.credentials.find("groq")).api_key == "fresh"
        await v.clock.advance(FRESH_MS)
        await v.stored.inner.set("k", broken)
        await v.clock.advance(FRESH_MS)
        found = await v.credentials.find("groq")
        assert found.api_key is None
        assert found.reason == "the OAuth payload gives no key (oauth_refused)"


async def test_a_model_call_costs_no_look_into_the_store() -> None:
    async with vault(secrets={"llm_groq_api_key": "one"}) as v:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(v.credentials.get_api_key, "groq")
        assert await v.credentials.get_api_key("groq") == "one"
        assert (v.stored.looks, v.stored.reads) == (1, ["llm_groq_api_key"])
        # Another process sets it anew: a second later that counts.
        await v.clock.advance(FRESH_MS - 1)
        await v.stored.inner.set("llm_groq_api_key", "two")
        assert await v.credentials.get_api_key("groq") == "one"
        await v.clock.advance(FRESH_MS)
        assert await v.credentials.get_api_key("groq") == "two"
        assert (v.stored.looks, len(v.stored.reads)) == (2, 2)
        await v.clock.advance(FRESH_MS)
        assert await v.credentials.get_api_key("groq") == "two"
        assert len(v.stored.reads) == 2
        await v.stored.inner.delete("llm_groq_api_key")
        await v.clock.advance(FRESH_MS)
        assert await v.credentials.get_api_key("groq") is None


async def test_with_a_variable_the_store_is_not_asked_at_all() -> None:
    async with vault(environ={"GROQ_API_KEY": "env"}) as v:
        assert await v.credentials.get_api_key("groq") == "env"
        assert v.stored.looks == 0


@pytest.mark.behaviour("lemon_agent.18")
async def test_a_pool_comes_first_in_its_order_and_never_falls_back_to_the_environment() -> None:
    environ = {"B_KEY": "kb", "gone": "never", "OPENAI_API_KEY": "single"}
    stored = {"a": "ka", "c": "kc"}
    async with vault(environ=environ, secrets=stored, routing=pool()) as v:
        found = await v.credentials.list_api_keys("openai")
        assert [(c.ref, c.api_key) for c in found] == [
            ("secret:a", "ka"),
            ("env:B_KEY", "kb"),
            ("c", "kc"),
            ("default", "single"),
        ]
        assert [c.ref for c in await v.credentials.list_api_keys("groq")] == []
        assert [c.ref for c in await v.credentials.list_api_keys("openai", pool="other")] == [
            "default"
        ]


@pytest.mark.behaviour("lemon_agent.18")
async def test_resting_keys_are_passed_over_and_a_resting_key_beats_none() -> None:
    stored = {"a": "ka", "c": "kc"}
    async with vault(secrets=stored, routing=pool()) as v:
        assert await v.credentials.get_api_key("openai") == "ka"
        v.health.failed("openai", "secret:a", REFUSED)
        assert await v.credentials.get_api_key("openai") == "kc"
        v.health.failed("openai", "c", REFUSED)
        assert await v.credentials.get_api_key("openai") == "ka"


async def test_a_pool_that_takes_turns_keeps_a_session_with_its_key() -> None:
    stored = {"a": "ka", "c": "kc"}
    environ = {"B_KEY": "kb"}
    turns = pool(strategy="round_robin")
    async with vault(environ=environ, secrets=stored, routing=turns) as v:

        async def first(session: str) -> str:
            return (await v.credentials.list_api_keys("openai", session_id=session))[0].ref

        assert [await first(s) for s in ("s1", "s2", "s3", "s1")] == [
            "secret:a",
            "env:B_KEY",
            "c",
            "secret:a",
        ]


async def test_a_pool_makes_its_provider_ready() -> None:
    async with vault(secrets={"c": "kc"}, routing=pool()) as v:
        assert await v.credentials.has_credentials("openai")
        assert v.credentials.reference_counts("openai") == {"team": 4}


@pytest.mark.parametrize(
    ("provider", "row", "environ", "ready"),
    [
        ("google_vertex", None, {}, False),
        ("google_vertex", Provider(service_account_json="{}"), {}, True),
        ("google_vertex", None, {"GOOGLE_APPLICATION_CREDENTIALS": "/x.json"}, True),
        ("amazon_bedrock", None, {}, False),
        ("amazon_bedrock", None, {"AWS_PROFILE": "dev"}, True),
        ("amazon_bedrock", None, {"AWS_ACCESS_KEY_ID": "a"}, False),
        (
            "amazon_bedrock",
            None,
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
            True,
        ),
        (
            "amazon_bedrock",
            Provider(access_key_id_secret="a", secret_access_key_secret="b"),
            {},
            True,
        ),
        ("ollama", None, {}, False),
        ("ollama", Provider(models=("m",)), {}, True),
        ("azure_openai_responses", Provider(api_key="k"), {}, False),
        ("azure_openai_responses", Provider(api_key="k", resource_name="r"), {}, True),
        ("local", None, {}, False),
    ],
)
async def test_who_needs_what(
    provider: str, row: Provider | None, environ: dict[str, str], ready: bool
) -> None:
    rows = {} if row is None else {provider: row}
    async with vault(rows, environ=environ) as v:
        assert await v.credentials.has_credentials(provider) is ready


@pytest.mark.behaviour("lemon_agent.22")
async def test_the_owners_keys_are_not_for_a_url_of_a_project() -> None:
    url = "http://evil.example/v1"
    environ = {"GEMINI_API_KEY": CANARY, "B_KEY": CANARY}
    stored = {"llm_google_api_key": CANARY, "a": CANARY}
    rows = {"google": Provider(base_url=url), "openai": Provider(base_url=url)}
    foreign = {"google": url, "openai": url}
    async with vault(rows, environ=environ, secrets=stored, routing=pool(), foreign=foreign) as v:
        assert (await v.credentials.find("google")).api_key is None
        assert await v.credentials.list_api_keys("openai") == []
    async with vault(rows, environ=environ) as v:
        assert (await v.credentials.find("google")).api_key == CANARY


@pytest.mark.behaviour("lemon_agent.18")
async def test_keys_are_in_no_repr_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    row = Provider(api_key_secret="my_secret", auth_source="api_key")
    payload = json.dumps({"type": "x_oauth", "access_token": CANARY})
    with caplog.at_level(logging.DEBUG, logger="lemon"):
        async with vault(
            {"anthropic": row, "openai": Provider(api_key=CANARY)},
            secrets={"my_secret": payload, "a": CANARY},
            routing=pool(),
        ) as v:
            await v.credentials.find("anthropic")
            found = await v.credentials.list_api_keys("openai")
            assert CANARY in [c.api_key for c in found]
            shown = [repr(found), repr(await v.credentials.find("openai")), repr(v.settings)]
            table = await v.credentials.table()
            shown += [repr(access) for access in table.all]
    text = "\n".join([*shown, caplog.text])
    assert "canary" not in text
