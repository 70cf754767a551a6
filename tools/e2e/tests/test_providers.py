"""`lemon run` with each wire API, from the built program: a tool round, then a streamed answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import aiohttp
import anyio
import pytest

from lemon_ai import Catalog
from lemon_ai.testing.wires import WIRES
from tools.e2e.tests.stack import LEMON, Ended, Home, document, provider_server, user

pytestmark = pytest.mark.anyio

KEY: Final = "key-of-this-test"
TOKEN: Final = "token-of-this-test"
PROMPT: Final = "create hello.txt holding hi"
SCRIPT: Final[Mapping[str, object]] = {
    "turns": [
        {
            "thinking": "A file is wanted. ",
            "thinking_signature": "c2lnbmF0dXJl",
            "text": "I write it. ",
            "tool_calls": [{"name": "write", "arguments": {"path": "hello.txt", "content": "hi"}}],
            "when": PROMPT,
            "fake_usage": {"input": 40, "output": 2},
        },
        {
            "text": ["begun\n", "and done."],
            "gate": "held",
            "gate_after": 1,
            "fake_usage": {"input": 60, "output": 3},
        },
    ],
    # Where a service account's tokens come from.
    "probes": {"/token": {"access_token": TOKEN, "expires_in": 3_600, "token_type": "Bearer"}},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One provider. `environ` gets the origin as `{origin}` and the base URL as `{base}`; `header`
    is what the key becomes, up to what nobody knows beforehand."""

    api: str
    provider: str
    environ: Mapping[str, str]
    header: tuple[str, str]
    config: str = ""

    @property
    def model(self) -> str:
        """The provider's default model; any id does where the catalogue has none."""
        row = Catalog().default_model(self.provider)
        return f"{self.provider}:{'any-model' if row is None else row.id}"

    def variables(self, origin: str) -> dict[str, str]:
        """The environment for a provider at this origin."""
        base = f"{origin}{WIRES[self.api].base_path}"
        found = {
            name: value.replace("{origin}", origin).replace("{base}", base)
            for name, value in self.environ.items()
        }
        if self.api == "google_vertex":
            account = service_account(f"{origin}/token")
            found["GOOGLE_APPLICATION_CREDENTIALS_JSON"] = account
        return found


BEARER: Final = ("authorization", f"Bearer {KEY}")
CASES: Final = (
    Case(
        "openai_completions",
        "openai",
        {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "{base}"},
        BEARER,
    ),
    Case(
        "openai_responses",
        "box",
        {"BOX_API_KEY": KEY, "BOX_BASE_URL": "{base}"},
        BEARER,
        config='[providers.box]\napi = "openai_responses"\n',
    ),
    Case(
        "azure_openai_responses",
        "azure_openai_responses",
        {"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_BASE_URL": "{base}"},
        ("api-key", KEY),
    ),
    Case(
        "anthropic_messages",
        "anthropic",
        {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "{base}"},
        ("x-api-key", KEY),
    ),
    Case(
        "google_generative_ai",
        "google",
        {"GEMINI_API_KEY": KEY, "GOOGLE_BASE_URL": "{base}"},
        ("x-goog-api-key", KEY),
    ),
    Case(
        "google_vertex",
        "google_vertex",
        {"GOOGLE_VERTEX_BASE_URL": "{base}"},
        ("authorization", f"Bearer {TOKEN}"),
    ),
    Case(
        "bedrock_converse_stream",
        "amazon_bedrock",
        {"AWS_BEARER_TOKEN_BEDROCK": KEY, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{origin}"},
        BEARER,
    ),
    Case(
        "bedrock_converse_stream",
        "amazon_bedrock",
        {
            "AWS_ACCESS_KEY_ID": "AKIDOFTHISTEST",
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{origin}",
        },
        ("authorization", "AWS4-HMAC-SHA256 Credential=AKIDOFTHISTEST/"),
    ),
)
NAMES: Final = [*(case.api for case in CASES[:-1]), "bedrock_signed"]


@cache
def private_key() -> str:
    """A key that no one trusts."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain).decode()


def service_account(token_uri: str) -> str:
    """The JSON of a service account whose tokens come from there."""
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "fake-project",
            "private_key_id": "1",
            "private_key": private_key(),
            "client_email": "lemon@fake-project.iam.gserviceaccount.com",
            "token_uri": token_uri,
        }
    )


async def configured(home: Home, text: str, environ: Mapping[str, str]) -> Home:
    """The same user with this configuration and these variables."""
    await anyio.Path(home.paths.state_dir).mkdir(exist_ok=True)
    await anyio.Path(home.paths.config_file).write_text(text)
    return Home(home.paths, {**home.environ, **environ})


async def streamed(home: Home, origin: str, model: str) -> Ended:
    """A run whose answer is held after its first word, until that has been shown."""
    async with home.start(LEMON, "run", "--model", model, "--session", "w", PROMPT) as program:
        await program.wait_for("begun")
        url = f"{origin}/control/gates/held"
        async with aiohttp.ClientSession() as http, http.post(url) as opened:
            assert opened.status == 200
        return await program.wait()


async def requests_at(origin: str) -> list[dict[str, Any]]:
    """What the provider was sent."""
    async with aiohttp.ClientSession() as http, http.get(f"{origin}/control/requests") as answer:
        found: list[dict[str, Any]] = await answer.json()
        return found


@pytest.mark.parametrize("case", CASES, ids=NAMES)
async def test_a_run_with_each_provider(case: Case) -> None:
    async with user() as home, provider_server(SCRIPT, home.paths.home) as origin:
        me = await configured(home, case.config, case.variables(origin))
        ended = await streamed(me, origin, case.model)
        assert (ended.code, ended.out) == (0, "I write it. \n\nbegun\nand done."), ended
        assert await anyio.Path(home.work / "hello.txt").read_text() == "hi"
        sent = await requests_at(origin)
        assert [request["api"] for request in sent] == [case.api] * 2
        name, value = case.header
        assert all(request["headers"][name].startswith(value) for request in sent)
        assert all(KEY not in json.dumps(request["body"]) for request in sent)
        everything = (await document(me, "usage"))["periods"][-1]
        assert (everything["runs"], everything["input"], everything["output"]) == (1, 100, 5)
        (counted,) = everything["models"]
        assert f"{counted['provider']}:{counted['model']}" == case.model


async def test_a_key_out_of_the_store_is_sent_to_its_provider() -> None:
    async with user() as home:
        script = {"default": {"text": "Opened."}, "api_key": KEY}
        async with provider_server(script, home.paths.home) as origin:
            text = f'[providers.box]\nbase_url = "{origin}/v1"\napi_key_secret = "BOX_KEY"\n'
            me = await configured(home, text, {})
            run = ("run", "--model", "box:m", "--session", "w", "hi")
            refused = await me.lemon(*run)
            assert (refused.code, refused.out) == (1, "")
            assert (await me.lemon("secrets", "init")).code == 0
            assert (await me.lemon("secrets", "set", "BOX_KEY", KEY)).code == 0
            ended = await me.lemon(*run)
            assert (ended.code, ended.out) == (0, "Opened."), ended
            assert KEY not in refused.err + ended.err
            first, *_, last = await requests_at(origin)
            assert "authorization" not in first["headers"]
            assert last["headers"]["authorization"] == f"Bearer {KEY}"
            assert last["body"]["model"] == "m"


async def test_the_models_that_are_known_and_which_can_be_asked() -> None:
    async with user() as home:
        text = '[providers.box]\nbase_url = "http://127.0.0.1:1/v1"\nmodels = ["mine"]\n'
        me = await configured(home, text, {"ANTHROPIC_API_KEY": KEY})
        everything = await document(me, "models")
        rows = everything["models"]
        assert len(rows) == everything["total"]
        ready = {row["provider"] for row in rows if row["has_credentials"]}
        assert ready >= {"anthropic"}
        assert not ready & {"openai", "google", "amazon_bedrock"}
        (mine,) = [row for row in rows if row["provider"] == "box"]
        assert (mine["id"], mine["input_usd_per_million"]) == ("mine", None)
        filters = ("--provider", "anthropic", "--vision", "--thinking", "--limit", "2")
        some = await document(me, "models", *filters)
        assert len(some["models"]) == 2 < some["total"]
        for row in some["models"]:
            assert (row["provider"], row["vision"], row["thinking"]) == ("anthropic", True, True)
            assert row["context_window"] >= 100_000
            assert row["output_usd_per_million"] > row["input_usd_per_million"] > 0
        table = await me.lemon("models", *filters)
        assert (table.code, len(table.out.splitlines())) == (0, 3)
        assert all(f"anthropic:{row['id']}" in table.out for row in some["models"])
        assert KEY not in table.out + json.dumps(everything)
        unknown = await me.lemon("models", "--provider", "nobody")
        assert unknown.code == 2
        assert "anthropic" in unknown.err
