"""What apps add to the configuration: sections, channels, and variables.

A configuration is loaded before any component starts, so contributions come as data: a profile
names them by dotted path, and code that has them at hand passes them in (`Contributed`). The model
of a section is imported only when some layer sets a key of it; without that its owner reads its
defaults through `LemonConfig.section`. docs/decisions/0011-contributed-configuration.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import BaseModel, Field, create_model

from lemon_core.config import keys
from lemon_core.config.channels import GatewayChannel, section_of, switch_of
from lemon_core.config.fields import Opaque, Section
from lemon_core.config.model import LemonConfig
from lemon_core.config.variables import Variable
from lemon_core.errors import LemonError

if TYPE_CHECKING:
    from lemon_core.capabilities import Capabilities
    from lemon_core.config.declarations import EnvDeclaration
    from lemon_core.profiles import Profile

# The capability keys of the same contributions.
CONFIG_SECTIONS: Final = "config_sections"
GATEWAY_CHANNELS: Final = "gateway_channels"
ENV_DECLARATIONS: Final = "env_declarations"


class SectionConflict(LemonError):
    """A contributed section is there already."""

    code = "config_section_conflict"

    def __init__(self, path: str) -> None:
        super().__init__(f"the configuration section {path!r} is contributed twice")
        self.path = path


@dataclass(frozen=True, slots=True)
class Contributed:
    """Sections by dotted path, channels, and declarations; text is a dotted path to import."""

    sections: tuple[tuple[str, type[BaseModel] | str], ...] = ()
    channels: tuple[GatewayChannel | str, ...] = ()
    declarations: tuple[EnvDeclaration | str, ...] = ()

    @classmethod
    def of(cls, profile: Profile, capabilities: Capabilities | None = None) -> Contributed:
        """What `profile` names, and what components have contributed since."""
        many = capabilities.contributions if capabilities is not None else lambda key: ()
        sections = cast("tuple[tuple[str, type[BaseModel]], ...]", many(CONFIG_SECTIONS))
        channels = cast("tuple[GatewayChannel, ...]", many(GATEWAY_CHANNELS))
        declarations = cast("tuple[EnvDeclaration, ...]", many(ENV_DECLARATIONS))
        return cls(
            (*profile.config_sections.items(), *sections),
            (*profile.gateway_channels, *channels),
            (*profile.env_declarations, *declarations),
        )

    def used_by(self, layers: Iterable[Mapping[str, object]]) -> tuple[type[LemonConfig], Channels]:
        """The model with every section that `layers` set a key of, and the channels.

        Raises `SectionConflict`, ImportError, AttributeError.
        """
        datas = tuple(layers)
        used = {
            path: target
            for path, target in self.sections
            if any(keys.get(data, tuple(path.split("."))) is not None for data in datas)
        }
        if len(dict(self.sections)) != len(self.sections):
            names = [path for path, _ in self.sections]
            raise SectionConflict(next(path for path in names if names.count(path) > 1))
        channels = self.all_channels()
        if not used and not channels:
            return LemonConfig, ()
        models = tuple((path, cast("type[BaseModel]", _loaded(used[path]))) for path in used)
        return compose(models, tuple(channel.id for channel in channels)), channels

    def all_channels(self) -> Channels:
        """The channels, imported."""
        return tuple(cast(GatewayChannel, _loaded(channel)) for channel in self.channels)

    def all_declarations(self) -> tuple[EnvDeclaration, ...]:
        """The declarations, imported; a dotted path leads to one or to a list of them."""
        found: list[EnvDeclaration] = []
        for item in self.declarations:
            loaded = _loaded(item)
            many = loaded if isinstance(loaded, Sequence) else (loaded,)
            found += cast("Sequence[EnvDeclaration]", many)
        return tuple(found)

    def variables(self) -> tuple[Variable, ...]:
        """The variables that set keys of contributed sections and channels.

        Raises `DuplicateDeclaration` when a name or a variable is declared twice.
        """
        if not self.declarations:
            return ()
        from lemon_core.config.declarations import open_env

        open_env({}, self.all_declarations())
        paths = {path for path, _ in self.sections}
        for channel in self.all_channels():
            paths |= {".".join(section_of(channel)), ".".join(switch_of(channel))}
        return tuple(
            declaration.variable
            for declaration in self.all_declarations()
            if any(f"{declaration.name}.".startswith(f"{path}.") for path in paths)
        )


Channels = tuple[GatewayChannel, ...]
NOTHING_CONTRIBUTED: Final = Contributed()


@lru_cache(maxsize=8)
def compose(
    sections: tuple[tuple[str, type[BaseModel]], ...], channel_ids: tuple[str, ...]
) -> type[LemonConfig]:
    """`LemonConfig` with more sections; raises `SectionConflict`."""
    added: dict[tuple[str, ...], Any] = {}
    for path, model in sections:
        _add(added, tuple(path.split(".")), (model, Field(default_factory=model)))
    for channel_id in channel_ids:
        _add(added, ("gateway", channel_id), (Opaque, Field(default_factory=dict)))
        _add(added, ("gateway", f"enable_{channel_id}"), (bool, False))
    return cast("type[LemonConfig]", _extended(LemonConfig, added, ()))


def _add(added: dict[tuple[str, ...], Any], path: tuple[str, ...], definition: object) -> None:
    if path in added:
        raise SectionConflict(".".join(path))
    added[path] = definition


def _extended(
    base: type[BaseModel], added: Mapping[tuple[str, ...], Any], at: tuple[str, ...]
) -> type[BaseModel]:
    """A subclass of `base` with the fields in `added`; the sections on the way are extended too."""
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(path[0] for path in added):
        inner = {path[1:]: item for path, item in added.items() if path[0] == name and path[1:]}
        own, info = added.get((name,)), base.model_fields.get(name)
        if own is not None and (inner or info is not None):
            raise SectionConflict(".".join((*at, name)))
        if own is not None:
            fields[name] = own
            continue
        section = Section if info is None else keys.section_model(info.annotation)
        if section is None:
            raise SectionConflict(".".join((*at, name)))
        extended = _extended(section, inner, (*at, name))
        marks = () if info is None else tuple(info.metadata)
        annotation = Annotated[(extended, *marks)] if marks else extended
        fields[name] = (annotation, Field(default_factory=extended))
    # Without a validator of its own: it is built when it is first needed, as for every section.
    return cast("type[BaseModel]", create_model(base.__name__, __base__=base, **fields))


def _loaded(item: object) -> object:
    if not isinstance(item, str):
        return item
    from lemon_core.profiles import load_target

    return load_target(item)
