"""Connecting one provider: which one, how to sign in, its credential, the model, the file.

The value of a credential goes into the encrypted store and nowhere else; the configuration file
gets the name of the secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import anyio

from lemon_agent.runtime.names import NAMES, ProviderName, normal_name, split_spec
from lemon_ai.catalog import Catalog
from lemon_ai.oauth import OAuthProviderConfig
from lemon_ai.oauth_providers import OAUTH_PROVIDERS
from lemon_ai.providers import PROVIDERS
from lemon_cli.errors import CliError, ExitCode
from lemon_cli.provider_view import ProviderView, Usable, provider_view
from lemon_cli.sign_in import sign_in
from lemon_cli.ui import Ui
from lemon_core.commands import CommandContext
from lemon_core.config.contributed import Contributed
from lemon_core.config.toml_text import literal_of
from lemon_core.config.write import Edit, edit_file

Mode = Literal["api_key", "oauth", "none"]
T = TypeVar("T")

# Their row says which of the two ways is meant.
_TOLD_THE_WAY: Final = frozenset({"anthropic", "openai_codex"})
_MODE_WORDS: Final[Mapping[Mode, str]] = {
    "api_key": "API key",
    "oauth": "sign in with the browser",
    "none": "server on this machine, no key",
}
_LISTED_MODELS: Final = 15


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line has decided already; the rest is asked or takes its default."""

    provider: str | None = None
    auth: str | None = None
    token: str | None = field(default=None, repr=False)
    secret_name: str | None = None
    model: str | None = None
    set_default: bool = False


@dataclass(frozen=True, slots=True)
class Onboarded:
    """The provider that is connected, and what was set as the default."""

    provider: str
    model: str | None = None


def onboard(
    context: CommandContext,
    ui: Ui,
    request: Request,
    *,
    oauth_providers: Mapping[str, OAuthProviderConfig] = OAUTH_PROVIDERS,
) -> Onboarded:
    """Connect a provider; no request goes out but those of a browser sign-in.

    Raises `CliError`, `Cancelled`, `SecretsError` and `ConfigWriteError`; then the configuration is
    as it was.
    """
    contributed = Contributed.of(context.profile)
    # Before anything is asked or stored: a file that cannot be edited ends it here.
    edit_file(context.paths.config_file, (), contributed=contributed)
    row = _provider(context, ui, request, oauth_providers)
    mode = _mode(ui, request, row, oauth_providers)
    secret = request.secret_name or (row.oauth_secret if mode == "oauth" else "") or row.secret
    if mode != "none":
        _with(context, _refuse_without_key)
    credential = _credential(context, ui, request, row, mode, secret, oauth_providers)
    is_default = request.set_default or request.model is not None
    if not is_default and ui.interactive:
        is_default = ui.confirm(f"Make {row.config_name} the default provider?", default=False)
    model = _model(ui, request, row) if is_default else None
    if credential is not None:
        _with(context, _store(secret, credential, row.canonical))
    edits = _with(context, _edits(row, mode, secret, model, is_default=is_default))
    if credential is not None:
        ui.say(f"Stored the credential as {secret}, encrypted.")
    is_changed = edit_file(context.paths.config_file, edits, contributed=contributed)
    done = "Wrote" if is_changed else "Nothing changed in"
    ui.say(f"{done} [providers.{row.config_name}] of {context.paths.config_file}.")
    _report(context, ui, row, model, is_key_new=credential is not None and mode == "api_key")
    return Onboarded(row.canonical, model)


def modes_of(row: ProviderName, oauth_providers: Mapping[str, OAuthProviderConfig]) -> list[Mode]:
    """The ways to sign in at a provider, the default first."""
    if row.kind == "local_server":
        return ["none"]
    if row.canonical not in oauth_providers:
        return ["api_key"]
    return ["oauth", "api_key"] if row.oauth_secret else ["api_key", "oauth"]


def connectable() -> list[ProviderName]:
    """The providers that are opened by a key or by being there, in catalogue order."""
    return [row for row in NAMES.values() if row.kind in ("key", "bedrock", "local_server")]


def offered() -> list[ProviderName]:
    """Those of them that this build can ask; the others may still be named."""
    return [row for row in connectable() if row.canonical in PROVIDERS]


# -- which provider --------------------------------------------------------------------------


def _provider(
    context: CommandContext,
    ui: Ui,
    request: Request,
    oauth_providers: Mapping[str, OAuthProviderConfig],
) -> ProviderName:
    rows = offered()
    if request.provider is not None:
        wanted = normal_name(request.provider)
        for row in connectable():
            if row.canonical == wanted:
                return row
        known = ", ".join(row.config_name for row in rows)
        raise CliError(f"unknown provider {request.provider!r}; known: {known}", ExitCode.USAGE)
    if not ui.interactive:
        raise CliError("name a provider: lemon model PROVIDER --token-stdin", ExitCode.USAGE)
    states = _with(context, _states)
    notes = [
        f"{' or '.join(_MODE_WORDS[m] for m in modes_of(row, oauth_providers))}"
        f"{_told(states.get(row.canonical))}"
        for row in rows
    ]
    return rows[ui.choose("Which provider?", [row.config_name for row in rows], notes=notes)]


def _told(state: str | None) -> str:
    return "" if state is None else f" ({state})"


async def _states(view: ProviderView) -> dict[str, str]:
    """The providers that are more than `not configured`."""
    defaults = view.settings.defaults
    led, _ = split_spec(defaults.model, view.plain.names) if defaults.model else (None, "")
    default = led or (normal_name(defaults.provider) if defaults.provider else None)
    found: dict[str, str] = {}
    for access in (await view.table()).ready:
        is_oauth = access.row is not None and access.row.auth_source == "oauth"
        found[access.name] = "oauth configured" if is_oauth else "configured"
    if default is not None:
        found[default] = "default"
    return found


# -- the credential --------------------------------------------------------------------------


def _mode(
    ui: Ui,
    request: Request,
    row: ProviderName,
    oauth_providers: Mapping[str, OAuthProviderConfig],
) -> Mode:
    modes = modes_of(row, oauth_providers)
    if request.token is not None:
        if request.auth == "oauth":
            raise CliError("a token is an API key: leave out --auth oauth", ExitCode.USAGE)
        return "api_key"  # a server on this machine may ask for one all the same
    if request.auth is not None:
        for mode in modes:
            if mode == request.auth:
                return mode
        raise CliError(
            f"{row.config_name} has no {request.auth} here: use --auth {modes[0]}", ExitCode.USAGE
        )
    if len(modes) == 1 or not ui.interactive:
        return "api_key" if "api_key" in modes else modes[0]
    return modes[ui.choose("How do you sign in?", [_MODE_WORDS[mode] for mode in modes])]


def _credential(
    context: CommandContext,
    ui: Ui,
    request: Request,
    row: ProviderName,
    mode: Mode,
    secret: str,
    oauth_providers: Mapping[str, OAuthProviderConfig],
) -> str | None:
    """What is to be stored; None when what is stored stays, or nothing is needed."""
    if mode == "none":
        return None
    if request.token is not None:
        return _checked_token(request.token)
    if mode == "oauth":
        if not ui.interactive:
            raise CliError("a browser sign-in needs a terminal: use --token-stdin")
        return sign_in(ui, oauth_providers[row.canonical], context.environ)
    is_stored, variables = _with(context, _places(secret, row))
    if is_stored and (
        not ui.interactive or ui.confirm(f"Keep the key that is stored as {secret}?", default=True)
    ):
        return None
    for name, value in variables:
        if not ui.interactive or ui.confirm(f"Store the key that is in {name}?", default=True):
            return _checked_token(value)
    if not ui.interactive:
        raise CliError(f"no key: lemon model {row.config_name} --token-stdin reads one")
    return ui.ask_hidden(f"API key of {row.config_name}", check=_token_problem)


def _checked_token(token: str) -> str:
    problem = _token_problem(token)
    if problem is not None:
        raise CliError(problem, ExitCode.USAGE)
    return token.strip()


def _token_problem(token: str) -> str | None:
    if not token.strip():
        return "the token is empty"
    if len(token.split()) > 1 or not token.strip().isprintable():
        return "that is no key: it has spaces or line ends in it"
    return None


async def _refuse_without_key(view: ProviderView) -> None:
    status = await view.core.secrets.status()
    if not status.configured:
        raise CliError(
            f"secrets cannot be stored ({status.problem}): lemon secrets init creates a master key"
        )


def _places(
    secret: str, row: ProviderName
) -> Callable[[ProviderView], Awaitable[tuple[bool, list[tuple[str, str]]]]]:
    async def look(view: ProviderView) -> tuple[bool, list[tuple[str, str]]]:
        environ = view.core.loaded.environ
        found = [(name, environ.get(name, "").strip()) for name in row.variables]
        return await view.core.secrets.exists(secret), [(n, v) for n, v in found if v]

    return look


def _store(secret: str, value: str, provider: str) -> Callable[[ProviderView], Awaitable[object]]:
    async def store(view: ProviderView) -> object:
        return await view.core.secrets.set(secret, value, provider=provider)

    return store


# -- the model and the file ------------------------------------------------------------------


def _model(ui: Ui, request: Request, row: ProviderName) -> str | None:
    """The id of the default model; None leaves it to the provider's default row."""
    catalog = Catalog()
    known = catalog.get_model_ids(row.canonical)
    if request.model is not None:
        head, colon, rest = request.model.strip().partition(":")
        named = rest if colon and normal_name(head) == row.canonical else request.model.strip()
        if known and named not in known:
            listed = ", ".join(known)
            raise CliError(
                f"{row.config_name} has no model {named!r}; it has: {listed}", ExitCode.USAGE
            )
        return named
    default = catalog.default_model(row.canonical)
    if not ui.interactive or not known:
        return None if default is None else default.id
    first = default.id if default is not None else known[0]
    shown = [first, *(name for name in known if name != first)][:_LISTED_MODELS]
    if len(known) > len(shown):
        ui.say(ui.dim(f"{len(known) - len(shown)} more: lemon models --provider {row.canonical}"))
    notes = [
        (model.name or "") if (model := catalog.get_model(row.canonical, name)) else ""
        for name in shown
    ]
    return shown[ui.choose("Which model?", shown, notes=notes)]


def _edits(
    row: ProviderName, mode: Mode, secret: str, model: str | None, *, is_default: bool
) -> Callable[[ProviderView], Awaitable[list[Edit]]]:
    async def made(view: ProviderView) -> list[Edit]:
        names = view.settings.providers
        spelled = next((n for n in names if normal_name(n) == row.canonical), row.config_name)
        edits = [
            Edit(("providers", spelled, key), None if value is None else literal_of(value))
            for key, value in _keys(row, mode, secret).items()
        ]
        if is_default:
            edits.append(Edit(("defaults", "provider"), literal_of(row.config_name)))
            spec = None if model is None else literal_of(f"{row.config_name}:{model}")
            edits.append(Edit(("defaults", "model"), spec))
        return edits

    return made


def _keys(row: ProviderName, mode: Mode, secret: str) -> dict[str, str | None]:
    """The keys of the provider's block; None takes one away: it belongs to the other way."""
    if mode == "none":
        return {"base_url": PROVIDERS[row.canonical].base_url}
    way: dict[str, str | None] = {"auth_source": mode} if row.canonical in _TOLD_THE_WAY else {}
    # An inline key would be used before the secret that has just been named.
    if mode == "oauth" and row.canonical in _TOLD_THE_WAY:
        return {"oauth_secret": secret, **way, "api_key_secret": None, "api_key": None}
    return {"api_key_secret": secret, **way, "oauth_secret": None, "api_key": None}


def _report(
    context: CommandContext,
    ui: Ui,
    row: ProviderName,
    model: str | None,
    *,
    is_key_new: bool,
) -> None:
    """What else the person should know."""
    name = row.config_name
    if model is not None:
        ui.say(f"{name}:{model} is the default model.")
    found = _with(context, _usable(row.canonical))
    variable = next((v for v in row.variables if context.environ.get(v, "").strip()), None)
    if variable is not None and is_key_new:
        ui.say(f"As long as {variable} is set, its key is used first.")
    if row.canonical not in PROVIDERS:
        ui.say(f"This Lemon cannot ask {name} yet.")
    elif not found.is_usable:
        ui.say(f"{name} cannot be asked yet: {found.reason}")


def _usable(name: str) -> Callable[[ProviderView], Awaitable[Usable]]:
    async def look(view: ProviderView) -> Usable:
        return await view.usable(name)

    return look


def _with(context: CommandContext, use: Callable[[ProviderView], Awaitable[T]]) -> T:
    """What `use` gives, in an event loop of its own: nothing is asked inside of one."""

    async def run() -> T:
        async with provider_view(context) as view:
            return await use(view)

    return anyio.run(run)
