"""`lemon models`: which models there are, what they cost and can do, and which can be asked now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lemon_core.cli.base import (
    command_app,
    command_context,
    note,
    print_json,
    project_dir,
    text_table,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lemon_ai.catalog import Catalog, ModelRow
    from lemon_core.commands import CommandContext
    from lemon_core.config.model import LemonConfig

# What opens a provider that has no key of its own: all variables of one group.
_OTHER_CREDENTIALS: Final = {
    "amazon_bedrock": (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_PROFILE",)),
    "google_vertex": (
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        ("GOOGLE_APPLICATION_CREDENTIALS_JSON",),
    ),
}

app = command_app("List the models that Lemon knows.")


@app.command()
def models(
    ctx: typer.Context,
    provider: Annotated[
        str | None, typer.Option("--provider", help="Only the models of this provider.")
    ] = None,
    vision: Annotated[bool, typer.Option("--vision", help="Only models that take images.")] = False,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Only models that can think.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many models.")
    ] = None,
    project: Annotated[
        Path | None,
        typer.Option("--project-dir", help="The project whose settings count."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """List models with their context window, price and abilities, the preferred provider first.

    Prices are dollars per million tokens. Nobody is asked over the network; a model that is not in
    the list can be named all the same where its server is configured.
    """
    import anyio

    from lemon_ai.catalog import Catalog, describe

    context = command_context(ctx)
    config, ready = anyio.run(_ready, context, project_dir(context, project))
    catalog = Catalog()
    _register(catalog, config)
    name = None if provider is None else _plain(provider)
    if name is not None and name not in catalog.get_providers():
        known = ", ".join(catalog.get_providers())
        raise typer.BadParameter(f"unknown provider; known: {known}", param_hint="--provider")
    rows = describe(catalog, provider=name, vision=vision, thinking=thinking)
    shown = rows[:limit]
    if as_json:
        print_json({"models": [_document(row, ready) for row in shown], "total": len(rows)})
        return 0
    if not shown:
        note("no model fits; a server of one's own lists its models only when it is asked")
        return 0
    print(_table(shown, ready))
    if len(shown) < len(rows):
        note(f"{len(rows) - len(shown)} more models are left out by --limit")
    return 0


async def _ready(context: CommandContext, project: Path) -> tuple[LemonConfig, frozenset[str]]:
    """The configuration, and the providers that have what opens them."""
    from lemon_ai.local_server import LOCAL_PROVIDER, is_installed
    from lemon_ai.providers import PROVIDERS
    from lemon_core.clock import SystemClock
    from lemon_core.doctor import doctor_context
    from lemon_core.doctor.provider_checks import credentialed, stored_secrets

    look = doctor_context(
        project,
        paths=context.paths,
        environ=context.environ,
        clock=SystemClock(),
        profile=context.profile,
    )
    names = {_plain(name) for name in credentialed(look, await stored_secrets(look))}
    for row in PROVIDERS.values():
        groups = [*zip(row.key_variables), *_OTHER_CREDENTIALS.get(row.id, ())]
        if any(all(look.environ.get(v, "").strip() for v in group) for group in groups):
            names.add(row.id)
    names.discard(LOCAL_PROVIDER)
    if is_installed():
        names.add(LOCAL_PROVIDER)
    return look.config, frozenset(names)


def _register(catalog: Catalog, config: LemonConfig) -> None:
    """Add the models that the configuration names and the catalogue does not know."""
    from lemon_ai.providers import PROVIDERS

    for name, row in config.providers.items():
        plain = _plain(name)
        vendor = PROVIDERS.get(plain)
        base_url = row.base_url or (vendor.base_url if vendor else "")
        unknown = [i for i in row.models if catalog.get_model(plain, i) is None]
        if unknown or vendor is None:
            catalog.register_models(
                plain, [catalog.endpoint_model(plain, model_id, base_url) for model_id in unknown]
            )


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _document(row: ModelRow, ready: Collection[str]) -> dict[str, object]:
    return {
        "provider": row.provider,
        "id": row.id,
        "name": row.name,
        "context_window": row.context_window,
        "max_tokens": row.max_tokens,
        "input_usd_per_million": row.input_price,
        "output_usd_per_million": row.output_price,
        "vision": row.vision,
        "thinking": row.thinking,
        "default": row.is_default,
        "has_credentials": row.provider in ready,
    }


def _table(rows: Sequence[ModelRow], ready: Collection[str]) -> str:
    head = ("model", "window", "in $/M", "out $/M", "vision", "thinking", "ready")
    return text_table([head, *(_cells(row, ready) for row in rows)])


def _cells(row: ModelRow, ready: Collection[str]) -> tuple[str, ...]:
    return (
        f"{row.provider}:{row.id}" + (" (default)" if row.is_default else ""),
        f"{row.context_window:,}",
        _price(row.input_price),
        _price(row.output_price),
        "yes" if row.vision else "-",
        "yes" if row.thinking else "-",
        "yes" if row.provider in ready else "-",
    )


def _price(price: float | None) -> str:
    return "unknown" if price is None else f"{price:g}"
