"""Which environment variables Lemon reads, what each is for, and what they say right now.

Core declares the variables of its own keys from the one table in `variables`; apps contribute
theirs as `env_declarations`. A declaration whose name is the dotted path of a key in a contributed
section sets that key; any other one is read by its owner through `Env.get`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, Literal

from lemon_core.config.env import read_text
from lemon_core.config.variables import VARIABLES, Kind, Variable
from lemon_core.errors import LemonError

Source = Literal["env", "alias", "default"]
REDACTED: Final = "***REDACTED***"


@dataclass(frozen=True, slots=True)
class EnvDeclaration:
    """One variable: `name` is what code asks for, `env_var` and then `aliases` are what is read."""

    name: str
    env_var: str
    aliases: tuple[str, ...] = ()
    type: Kind = "string"
    default: object = None
    doc: str = ""
    secret: bool = False
    required: bool = False
    area: str = ""
    apps: tuple[str, ...] = ()

    @property
    def variable(self) -> Variable:
        """The variable of the key that `name` is the path of."""
        return Variable(self.env_var, tuple(self.name.split(".")), self.type, self.aliases)


@dataclass(frozen=True, slots=True)
class EnvReading:
    """What one declaration reads as; the value of a secret is not in here."""

    declaration: EnvDeclaration
    value: object
    source: Source
    # The variable that was read; None for a default.
    env_var: str | None = None


def _process(name: str, env_var: str, doc: str, **more: object) -> EnvDeclaration:
    declaration = EnvDeclaration(name, env_var, doc=doc, area="process", apps=("lemon_core",))
    return replace(declaration, **more)  # type: ignore[arg-type]  # fields by name


# What says where this process runs and with what; none of it can stand in a file.
_PROCESS: Final = (
    _process("process.profile", "LEMON_RUNTIME_PROFILE", "Which runtime profile to start."),
    _process("process.root", "LEMON_PATH", "The source tree or the installation."),
    _process("process.agent_dir", "LEMON_AGENT_DIR", "The agent's own files."),
    _process("process.dotenv_dir", "LEMON_DOTENV_DIR", "Where `.env` is, instead of ~/.lemon."),
    _process("process.node_name", "LEMON_GATEWAY_NODE_NAME", "This node's name, else the host's."),
    _process("process.environment", "LEMON_ENV", "`prod` is lenient about faulty events."),
    _process("process.debug", "LEMON_DEBUG", "Log everything.", type="boolean", default=False),
    _process(
        "process.control_plane_port",
        "LEMON_CONTROL_PLANE_PORT",
        "Its port.",
        type="integer",
        default=4040,
    ),
    _process("process.web_port", "LEMON_WEB_PORT", "Its port.", type="integer", default=4080),
    _process("process.sim_ui_port", "LEMON_SIM_UI_PORT", "Its port.", type="integer", default=4090),
    _process(
        "process.secrets_master_key",
        "LEMON_SECRETS_MASTER_KEY",
        "The key to the stored secrets, where no keychain has it.",
        secret=True,
    ),
    _process(
        "process.update_manifest_url",
        "LEMON_UPDATE_MANIFEST_URL",
        "Where `lemon update` looks for releases; `{channel}` and `{version}` are filled in.",
    ),
    _process(
        "process.store_url", "LEMON_STORE_URL", "The PostgreSQL database of the store.", secret=True
    ),
)


class DuplicateDeclaration(LemonError):
    """Two declarations claim one name or one variable."""

    code = "duplicate_env_declaration"

    def __init__(self, what: str, one: EnvDeclaration, other: EnvDeclaration) -> None:
        super().__init__(
            f"{what} is declared twice, as {one.name!r} by {_owners(one)} and as {other.name!r} "
            f"by {_owners(other)}: rename one of them"
        )
        self.what = what


@dataclass(frozen=True, slots=True)
class Env:
    """The declared variables of one environment.

    Raises `DuplicateDeclaration` when built of declarations that collide.
    """

    declarations: tuple[EnvDeclaration, ...]
    environ: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        seen: dict[str, EnvDeclaration] = {}
        for declaration in self.declarations:
            names = (declaration.name, declaration.env_var, *declaration.aliases)
            for name in dict.fromkeys(names):
                if name in seen:
                    raise DuplicateDeclaration(name, seen[name], declaration)
            seen |= dict.fromkeys(names, declaration)

    def get(self, name: str, default: object = None) -> object:
        """The value of the declared `name`: its variable, its aliases, `default`, the declared
        default. Text that cannot be read is passed over. Raises `KeyError` for an unknown name.
        """
        reading = self._read(self._find(name))
        if reading.source == "default" and default is not None:
            return default
        return reading.value

    def snapshot(self) -> tuple[EnvReading, ...]:
        """What every declaration reads as, in order, with secrets hidden."""
        return tuple(self._hidden(self._read(declaration)) for declaration in self.declarations)

    def missing(self) -> tuple[EnvDeclaration, ...]:
        """The required declarations that have no value."""
        return tuple(
            declaration
            for declaration in self.declarations
            if declaration.required and self._read(declaration).value is None
        )

    def _find(self, name: str) -> EnvDeclaration:
        for declaration in self.declarations:
            if declaration.name == name:
                return declaration
        raise KeyError(name)

    def _read(self, declaration: EnvDeclaration) -> EnvReading:
        for name in (declaration.env_var, *declaration.aliases):
            text = self.environ.get(name, "").strip()
            value = read_text(text, declaration.type) if text else None
            if value is not None:
                source: Source = "env" if name == declaration.env_var else "alias"
                return EnvReading(declaration, value, source, name)
        return EnvReading(declaration, declaration.default, "default")

    @staticmethod
    def _hidden(reading: EnvReading) -> EnvReading:
        if not reading.declaration.secret or reading.value is None:
            return reading
        return EnvReading(reading.declaration, REDACTED, reading.source, reading.env_var)


def core_declarations() -> tuple[EnvDeclaration, ...]:
    """The variables of core's keys, with the defaults of the section models, and of the process."""
    from lemon_core.config.model import LemonConfig  # for the defaults, which few ask for

    defaults = LemonConfig()
    return (*(_of_key(variable, defaults) for variable in VARIABLES), *_PROCESS)


def open_env(environ: Mapping[str, str], contributed: Iterable[EnvDeclaration] = ()) -> Env:
    """Core's declarations and the contributed ones over `environ`; raises as `Env`."""
    return Env((*core_declarations(), *contributed), environ)


def _of_key(variable: Variable, defaults: object) -> EnvDeclaration:
    from lemon_core.config.redact import is_private

    path = ".".join(variable.path)
    return EnvDeclaration(
        name=path,
        env_var=variable.name,
        aliases=variable.aliases,
        type=variable.kind,
        default=reduce(getattr, variable.path, defaults),
        doc=f"Sets {path}.",
        secret=is_private(variable.path),
        area=variable.path[0],
        apps=("lemon_core",),
    )


def _owners(declaration: EnvDeclaration) -> str:
    return ", ".join(declaration.apps) or "nobody"
