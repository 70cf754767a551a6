"""The first-run journey: the file, the master key, a provider, and a summary of what is left.

Each step looks at what is there first, so that going through it again changes nothing that is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import anyio

from lemon_agent.runtime.names import NAMES
from lemon_cli.errors import CliError, ExitCode
from lemon_cli.lifecycle import tighten
from lemon_cli.live_check import live_check
from lemon_cli.onboarding import Request, onboard
from lemon_cli.provider_view import provider_view
from lemon_cli.setup_state import ProviderStep, SetupState, provider_step, setup_state
from lemon_cli.ui import Cancelled, Ui
from lemon_core.commands import CommandContext
from lemon_core.config.env import environment
from lemon_core.config.write import write_new
from lemon_core.errors import LemonError
from lemon_core.master_key import MasterKeyChain, default_providers
from lemon_core.secret_errors import SecretsError

CONFIG_TEXT: Final = """\
# The configuration of Lemon. `lemon config show` tells what counts and where it comes from,
# `lemon config set PATH VALUE` changes a key and keeps these comments.

[defaults]
# Which model answers when nobody names one; without it the first provider that is ready does.
# provider = "openai"
# model = "openai:gpt-5"
# How much a model thinks before it answers: off, minimal, low, medium, high or xhigh.
thinking_level = "medium"

[runtime]
theme = "lemon"

[gateway]
# How many runs work at the same time.
max_concurrent_runs = 2
# A new run goes on with the conversation of the last one in its session.
auto_resume = true

[tui]
theme = "lemon"

# Providers are added by `lemon model`; keys are stored encrypted, and only named here.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line has decided. `is_launch`: something else follows a complete setup."""

    request: Request = field(default_factory=Request)
    skip_verify: bool = False
    is_launch: bool = False


@dataclass(slots=True)
class _Journey:
    """One way through the steps; `failed` has a step and its command for each that went wrong."""

    context: CommandContext
    ui: Ui
    options: Options
    failed: list[tuple[str, str]] = field(default_factory=list)

    def run(self) -> int:
        ui = self.ui
        tighten(self.context.paths)
        ui.say(ui.bold("Lemon setup"))
        if ui.interactive:
            ui.say(ui.dim("Enter takes what is marked, q gives up."))
        state = anyio.run(setup_state, self.context)
        for line in status_lines(ui, state):
            ui.say(line)
        ui.say()
        self._config(state)
        self._secrets(state)
        self._provider()
        return self._summary()

    def _config(self, state: SetupState) -> None:
        path = state.config.path
        if state.config.problem is not None:
            self._fail("configuration", state.config.problem, "lemon config validate")
            return
        if path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            write_new(path, CONFIG_TEXT.encode())
        except OSError as exc:
            self._fail("configuration", f"{path}: cannot be written: {exc.strerror}", "lemon setup")
            return
        self.ui.say(f"Wrote {path}.")
        self.ui.say(
            self.ui.dim("A session goes on where it was: the file sets gateway.auto_resume = true.")
        )

    def _secrets(self, state: SetupState) -> None:
        if state.secrets.complete:
            return
        environ, _, _ = environment(self.context.paths, self.context.environ)
        chain = MasterKeyChain(default_providers(self.context.paths, environ))
        try:
            place = anyio.run(chain.init_master_key)
        except SecretsError as exc:
            # Whatever is there stays: a new key would make every stored secret unreadable.
            self._fail(
                "master key",
                f"{exc}; make that key usable (restore the file or correct the variable), or, when "
                "the stored secrets are lost anyway: lemon secrets init --force",
                "lemon secrets init",
            )
            return
        where = next(str(it) for it in chain.providers if it.name == place)
        self.ui.say(f"Created a master key in {where}. Keep a copy of it.")

    def _provider(self) -> None:
        step = anyio.run(_look, self.context)
        ui, request = self.ui, self.options.request
        problem = None
        if request.provider is None:
            if step.credential_ready:
                problem = self._check_found(step.provider or "")
                if problem is None:
                    return
            elif not ui.interactive:
                ui.say("No provider was asked about: lemon setup --provider NAME connects one.")
                return
        try:
            if request.provider is not None or self._wanted(step):
                self._verify(onboard(self.context, ui, request).provider)
                return
        except Cancelled:
            ui.say("No provider was connected.")
        except LemonError as exc:
            if isinstance(exc, CliError) and exc.exit_code == ExitCode.USAGE:
                raise
            problem = str(exc)
        if problem is not None:
            self._fail("provider", problem, "lemon setup provider")

    def _wanted(self, step: ProviderStep) -> bool:
        if step.reason == "embedded_model":
            self.ui.say(
                "A small model is built in and answers without any provider; it has no tools."
            )
        return self.ui.confirm("Connect a model provider now?", default=True)

    def _check_found(self, provider: str) -> str | None:
        """A provider that is ready is not asked about; on a terminal it is checked."""
        known = NAMES.get(provider)
        variables = known.variables if known is not None else ()
        found = next((v for v in variables if self.context.environ.get(v, "").strip()), None)
        self.ui.say(f"{provider} is ready{f': its key is in {found}' if found else ''}.")
        if not self.ui.interactive:
            return None
        problem = verify(self.context, self.ui, provider, skip=self.options.skip_verify)
        if problem is not None:
            self.ui.say(self.ui.bad(problem))
        return problem

    def _verify(self, provider: str) -> None:
        problem = verify(self.context, self.ui, provider, skip=self.options.skip_verify)
        if problem is not None:
            self._fail("provider", problem, f"lemon setup provider {provider}")

    def _fail(self, step: str, message: str, command: str) -> None:
        self.failed.append((step, command))
        self.ui.say(self.ui.bad(message))

    def _summary(self) -> int:
        ui = self.ui
        state = anyio.run(setup_state, self.context)
        ui.say()
        if state.complete and not self.failed:
            ui.say(ui.good("Setup is complete."))
            if not self.options.is_launch:
                for line in _next_steps(self.context, state):
                    ui.say(line)
            return ExitCode.OK
        ui.say(ui.pending("Setup is not complete."))
        pending = dict(self.failed) | pending_steps(state)
        for step, command in pending.items():
            ui.say(f"  {step}: {command}")
        return ExitCode.FAILED if self.failed else ExitCode.OK


def run_setup(context: CommandContext, ui: Ui, options: Options) -> int:
    """Go through the whole setup; 1 when a step failed."""
    return _Journey(context, ui, options).run()


def connect(context: CommandContext, ui: Ui, options: Options) -> int:
    """Connect one provider and check it; 1 when it does not take the credential."""
    done = onboard(context, ui, options.request)
    problem = verify(context, ui, done.provider, skip=options.skip_verify)
    if problem is not None:
        raise CliError(problem)
    return ExitCode.OK


def verify(context: CommandContext, ui: Ui, provider: str, *, skip: bool) -> str | None:
    """Ask the provider; what is wrong, with advice, or None."""
    if skip:
        ui.say(ui.dim("The live check was skipped."))
        return None
    found = anyio.run(live_check, context, provider)
    if found.status == "failed":
        return (
            f"{found.detail}\n"
            f"correct it with lemon setup provider {provider}, or leave the check out with "
            "--skip-verify"
        )
    ui.say(f"{found.detail}.")
    return None


def status_lines(ui: Ui, state: SetupState) -> list[str]:
    """The three steps with what is known of them."""
    found, problem = state.secrets.source, state.secrets.problem
    secrets = f"from the {found}" if found else problem
    if problem == "missing_master_key":
        secrets = "there is none yet"
    rows = (
        ("configuration", state.config.complete, state.config.problem or str(state.config.path)),
        ("master key", state.secrets.complete, secrets or ""),
        ("provider", state.provider.complete, _who(state.provider)),
    )
    return [
        f"  {ui.good('[done]   ') if done else ui.pending('[pending]')} {name:<13}  {ui.dim(told)}"
        for name, done, told in rows
    ]


def pending_steps(state: SetupState) -> dict[str, str]:
    """Each pending step with the command that completes it."""
    steps = {}
    if not state.config.complete:
        fix = "lemon config validate" if state.config.problem else "lemon setup"
        steps["configuration"] = fix
    if not state.secrets.complete:
        steps["master key"] = "lemon secrets init"
    if not state.provider.complete:
        steps["provider"] = f"lemon setup provider    ({_who(state.provider)})"
    return steps


def _who(step: ProviderStep) -> str:
    match step.reason:
        case "embedded_model":
            return "the embedded model answers"
        case "model_provider_mismatch":
            return (
                f"defaults.model {step.model} is not of defaults.provider {step.provider} "
                "(model_provider_mismatch)"
            )
        case "credential_not_usable":
            return f"{step.provider} has no credential that can be used (credential_not_usable)"
        case "no_ready_provider":
            return "none is ready (no_ready_provider)"
        case None:
            return step.model or step.provider or ""


def _next_steps(context: CommandContext, state: SetupState) -> list[str]:
    lines = []
    if state.provider.reason == "embedded_model":
        lines.append(
            "The embedded model answers: small, without tools. For more: lemon setup provider"
        )
    lines.append('Try: lemon run "Say hello"')
    if context.profile.find_command("chat") is not None:
        lines.append("Or:  lemon chat")
    return lines


async def _look(context: CommandContext) -> ProviderStep:
    async with provider_view(context) as view:
        return await provider_step(view)
