from __future__ import annotations

import pytest

from lemon_agent.runtime import ModelChoice, NoModel, ProviderAccess, ProviderTable, UnknownModel
from lemon_agent.runtime import choose_model as choose
from lemon_agent.runtime.choice import MAX_LISTED
from lemon_ai import Catalog
from lemon_core.config.model import Defaults, Provider

pytestmark = pytest.mark.anyio

_DEFAULT = Catalog().default_model("openai")
assert _DEFAULT is not None
ROW = _DEFAULT.id  # a model that the catalogue knows, whichever it is by now
KEYED = Provider(api_key="k")
BOX = Provider(base_url="http://box/v1")


async def choose_model(
    spec: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    local: bool = True,
    **rows: Provider,
) -> ModelChoice:
    async def first_model(access: ProviderAccess) -> str:
        return f"first-of-{access.name}"

    table = ProviderTable(rows, is_local_installed=lambda: local)
    defaults = Defaults(provider=provider, model=model)
    return await choose(spec, defaults, table, Catalog(), first_model)


@pytest.mark.behaviour("lemon_agent.22")
async def test_the_embedded_model_answers_only_when_nothing_else_is_ready() -> None:
    choice = await choose_model()
    assert choice.spec == "local:smollm2-135m-instruct"
    assert choice.notice is not None
    assert choice.notice.startswith("no provider configured: answering with the embedded model")
    assert "\n" not in choice.notice
    assert (await choose_model(openai=KEYED)).model.provider == "openai"
    assert (await choose_model(box=BOX)).model.provider == "box"


@pytest.mark.behaviour("lemon_agent.22")
async def test_without_defaults_the_first_ready_provider_answers_with_its_default_row() -> None:
    assert _DEFAULT is not None
    assert await choose_model(box=BOX, openai=KEYED) == ModelChoice(_DEFAULT)


async def test_a_server_of_ones_own_answers_with_its_first_model() -> None:
    choice = await choose_model(openai=Provider(base_url="http://box/v1", api_key="k"))
    assert choice.spec == "openai:first-of-openai"
    assert (choice.model.base_url, choice.model.api) == ("http://box/v1", "openai_completions")
    listed = await choose_model(box=Provider(base_url="http://box/v1", models=("m1", "m2")))
    assert listed.spec == "box:m1"


async def test_the_configured_default_answers_when_its_provider_is_ready() -> None:
    by_provider = await choose_model(provider="box", openai=KEYED, box=BOX)
    assert by_provider.spec == "box:first-of-box"
    both = await choose_model(provider="box", model="m", openai=KEYED, box=BOX)
    assert both == ModelChoice(both.model)
    assert both.spec == "box:m"
    led = await choose_model(model="box:m", openai=KEYED, box=BOX)
    assert led.spec == "box:m"
    bare = await choose_model(model=ROW, box=BOX, openai=KEYED)
    assert bare.spec == f"openai:{ROW}"


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        ({"provider": "openai"}, "the default provider openai has no credential"),
        ({"model": ROW}, "the default provider openai has no credential"),
        ({"provider": "nobody"}, "the default provider nobody is not configured"),
    ],
)
async def test_a_default_that_is_not_ready_is_passed_over_and_said(
    defaults: dict[str, str], problem: str
) -> None:
    # For the middle case the box must not claim the id: its models are listed.
    box = Provider(base_url="http://box/v1", models=("m",))
    choice = await choose_model(**defaults, box=box)  # type: ignore[arg-type]
    assert choice.notice == f"{problem}: answering with box:m"
    embedded = await choose_model(**defaults)  # type: ignore[arg-type]
    assert embedded.model.provider == "local"
    assert (embedded.notice or "").startswith(f"{problem}: answering with the embedded model")


async def test_a_named_model_is_taken_whatever_the_defaults_say() -> None:
    choice = await choose_model(ROW, provider="box", openai=KEYED, box=BOX)
    assert (choice.spec, choice.is_explicit, choice.notice) == (f"openai:{ROW}", True, None)
    local = await choose_model("embedded:smollm2-135m-instruct", openai=KEYED)
    assert local.spec == "local:smollm2-135m-instruct"


async def test_a_named_model_of_a_server_of_ones_own_needs_no_row() -> None:
    assert (await choose_model("box:qwen3:8b", box=BOX)).spec == "box:qwen3:8b"
    assert (await choose_model("qwen3:8b", box=BOX)).spec == "box:qwen3:8b"
    known = await choose_model(f"openai:{ROW}", openai=Provider(base_url="http://box/v1"))
    assert _DEFAULT is not None
    assert known.model.base_url == "http://box/v1"
    assert known.model.context_window == _DEFAULT.context_window


async def test_a_model_listed_in_the_configuration_is_known() -> None:
    openai = Provider(api_key="k", models=("gpt-next",))
    choice = await choose_model("gpt-next", openai=openai)
    assert choice.spec == "openai:gpt-next"
    assert choice.model.base_url == "https://api.openai.com/v1"


@pytest.mark.parametrize("spec", ["gpt-99", "openai:gpt-99", "nobody:model"])
async def test_an_unknown_model_is_an_error_that_lists_what_is_known(spec: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        await choose_model(spec, openai=KEYED)
    assert caught.value.code == "unknown_model"
    assert f"unknown model '{spec}'" in str(caught.value)
    assert f"openai:{ROW}" in caught.value.known
    assert ", ".join(caught.value.known[:MAX_LISTED]) in str(caught.value)
    assert "local:smollm2-135m-instruct" in caught.value.known
    assert "\n" not in str(caught.value)


async def test_an_unknown_configured_model_is_an_error_too() -> None:
    with pytest.raises(UnknownModel, match="gpt-99"):
        await choose_model(provider="openai", model="gpt-99", openai=KEYED)


async def test_with_nothing_at_all_the_error_says_what_to_do() -> None:
    with pytest.raises(NoModel, match="OPENAI_API_KEY"):
        await choose_model(local=False)


async def test_a_blank_name_is_no_name() -> None:
    assert not (await choose_model("  ")).is_explicit
