"""What goes with a call beside a key (specification 10.3): project, region, deployments."""

from __future__ import annotations

import json

import pytest

from lemon_agent.runtime import ModelRuntime, ModelSettings
from lemon_agent.runtime.of_runtime import limits_for, oauth_resolver, without_keys
from lemon_agent.runtime.options import needs_options
from lemon_agent.tests.vault import Counting, secrets_in
from lemon_ai import Client, Model, StreamOptions
from lemon_ai.admission import UNLIMITED
from lemon_ai.transport import Transport
from lemon_core.config.model import Provider
from lemon_core.testing import FakeClock, temp_home

pytestmark = pytest.mark.anyio

VERTEX = Model(id="m", api="google_vertex", provider="google_vertex")


async def options_of(
    model: Model,
    row: Provider,
    given: StreamOptions | None = None,
    environ: dict[str, str] | None = None,
    secrets: dict[str, str] | None = None,
) -> StreamOptions:
    variables = dict(environ or {})
    with temp_home() as paths:
        stored = secrets_in(paths, FakeClock(), variables)
        await stored._store.open()
        for name, value in (secrets or {}).items():
            await stored.set(name, value)
        settings = ModelSettings(providers={model.provider: row}, environ=variables)
        models = ModelRuntime(
            settings=lambda: settings, secrets=Counting(stored), client=Client(env={})
        )
        return await models.build_stream_options(model, given or StreamOptions())


@pytest.mark.parametrize(
    ("missing", "project"),
    [
        ((), "from-secret"),
        (("project_secret",), "plain"),
        (("project_secret", "project"), "by-id"),
        (("project_secret", "project", "project_id"), "env-1"),
        (("project_secret", "project", "project_id", "GOOGLE_CLOUD_PROJECT"), "env-2"),
    ],
)
async def test_a_vertex_project_is_looked_for_in_order(
    missing: tuple[str, ...], project: str
) -> None:
    fields = {"project_secret": "p", "project": "plain", "project_id": "by-id"}
    row = Provider(location="europe", **{k: v for k, v in fields.items() if k not in missing})  # type: ignore[arg-type]
    environ = {"GOOGLE_CLOUD_PROJECT": "env-1", "GCLOUD_PROJECT": "env-2"}
    found = await options_of(
        VERTEX,
        row,
        environ={k: v for k, v in environ.items() if k not in missing},
        secrets={"p": "from-secret"},
    )
    assert found.provider_options["google_vertex"] == {"project": project, "location": "europe"}


async def test_explicit_options_win() -> None:
    row = Provider(project="mine", location="here")
    given = StreamOptions(provider_options={"google_vertex": {"project": "asked"}})
    found = await options_of(VERTEX, row, given)
    assert found.provider_options["google_vertex"] == {"project": "asked", "location": "here"}
    other = Model(id="m", api="bedrock_converse_stream", provider="amazon_bedrock")
    by_api = StreamOptions(provider_options={other.api: {"aws_region": "asked"}})
    region = Provider(region="eu-1")
    assert (await options_of(other, region, by_api)).provider_options == by_api.provider_options


async def test_aws_keys_and_azure_deployments_come_along() -> None:
    bedrock = Model(id="m", api="bedrock_converse_stream", provider="amazon_bedrock")
    row = Provider(region="eu-1", access_key_id_secret="a", secret_access_key_secret="s")
    found = await options_of(bedrock, row, secrets={"a": "AKIA", "s": "very"})
    assert found.provider_options["amazon_bedrock"] == {
        "aws_region": "eu-1",
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "very",
    }
    assert "very" not in repr(found)
    azure = Model(id="m", api="azure_openai_responses", provider="azure_openai_responses")
    azure_row = Provider(api_key="k", resource_name="r", deployment_name_map={"m": "d"})
    filled = await options_of(azure, azure_row)
    assert filled.provider_options["azure_openai_responses"] == {
        "resource_name": "r",
        "deployment_name_map": {"m": "d"},
    }
    assert filled.api_key is not None
    assert needs_options("azure_openai_responses", azure_row)
    assert not needs_options("openai", Provider(api_key="k", project="unused"))


def test_every_run_that_the_gateway_lets_in_may_call_a_vendor() -> None:
    for runs, calls in ((2, 10), (50, 100)):
        limits = limits_for("openai", runs)
        assert (limits.concurrency, limits.rate, limits.burst) == (calls, calls, 2 * calls)
    assert limits_for("openai at http://box/v1", 50) == UNLIMITED


def test_the_client_finds_no_key_by_itself() -> None:
    environ = {"ANTHROPIC_API_KEY": "k", "CHATGPT_TOKEN": "k", "HTTPS_PROXY": "p"}
    assert without_keys(environ) == {"HTTPS_PROXY": "p"}


async def test_a_stored_sign_in_gives_its_key() -> None:
    payload = {"type": "openrouter_oauth", "access_token": "sk-or", "expires_at_ms": None}
    transport = Transport(env={})
    resolve = oauth_resolver(transport, FakeClock())

    async def persist(name: str, value: str) -> None:
        raise AssertionError("nothing was renewed")

    assert await resolve("s", json.dumps(payload), persist) == "sk-or"
    assert await resolve("s", '{"no": "payload"}', persist) is None
    await transport.aclose()
