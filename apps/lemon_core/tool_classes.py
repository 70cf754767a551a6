"""Which tools are dangerous, external or delegating.

Policies forbid whole classes, so the classes have to be known wherever a policy is asked. Core
ships the table of the built-in tools; an app adds its own names to the runtime's copy at boot.
Two rules keep the table honest: a name that nobody classified counts as dangerous and external,
and a classification may gain classes but never lose one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, Protocol, get_args

from lemon_core.errors import LemonError

ToolClass = Literal["dangerous", "external", "delegation"]

TOOL_CLASSES: Final[tuple[ToolClass, ...]] = get_args(ToolClass)


def words(text: str) -> tuple[str, ...]:
    """The names in a space-separated list; tables of names stay readable that way."""
    return tuple(text.split())


BROWSER_READING: Final = words(
    "browser_navigate browser_snapshot browser_get_content browser_hover browser_scroll "
    "browser_back browser_wait_for_selector browser_events browser_get_cookies"
)
BROWSER_CHANGING: Final = words(
    "browser_click browser_type browser_select_option browser_upload_file browser_download "
    "browser_press browser_set_cookies browser_clear_state browser_evaluate browser_screenshot "
    "browser_analyze"
)
MEDIA_MAKING: Final = words(
    "media_generate_image media_generate_speech media_generate_video media_transcribe_audio "
    "media_analyze_image"
)

# They run code as freely as the shell does, so whoever forbids `bash` forbids them too.
SHELL_EQUIVALENTS: Final = frozenset({"jobs", "execute_code", "debug"})
# Those of them that start something: `jobs` only looks after what the shell was allowed to start.
CODE_RUNNERS: Final = frozenset({"execute_code", "debug"})

_NONE: Final[frozenset[ToolClass]] = frozenset()
_DANGEROUS: Final[frozenset[ToolClass]] = frozenset({"dangerous"})
_EXTERNAL: Final[frozenset[ToolClass]] = frozenset({"external"})
_UNCLASSIFIED: Final = _DANGEROUS | _EXTERNAL


_BUILTIN: Final[Mapping[str, frozenset[ToolClass]]] = {
    **dict.fromkeys(
        words(
            "read read_skill recall grep find ls lsp_diagnostics todo goal kanban extensions_status"
        ),
        _NONE,
    ),
    **dict.fromkeys(
        words("write edit hashline_edit patch checkpoint skill_manage remember bash"), _DANGEROUS
    ),
    "task": frozenset({"delegation"}),
    "agent": frozenset({"dangerous", "delegation"}),
    **dict.fromkeys(("webfetch", "websearch", "media_status", *BROWSER_READING), _EXTERNAL),
    **dict.fromkeys((*BROWSER_CHANGING, *MEDIA_MAKING), _UNCLASSIFIED),
}


class ToolClassification(Protocol):
    """What a policy asks of a table."""

    def classes(self, tool: str) -> frozenset[ToolClass]: ...


class WeakerClassification(LemonError):
    """A tool was to lose a class that it has already."""

    code = "weaker_classification"

    def __init__(self, tool: str, lost: frozenset[ToolClass]) -> None:
        super().__init__(
            f"tool {tool!r} is classed {', '.join(sorted(lost))}; "
            "a later classification cannot take that away"
        )
        self.tool, self.lost = tool, lost


class ToolClassTable:
    """The tool classes of one runtime: the built-in names, and those its apps add at boot."""

    def __init__(self) -> None:
        self._added: dict[str, frozenset[ToolClass]] = {}

    def classify(self, name: str, classes: Iterable[ToolClass]) -> None:
        """Class a tool. Repeating it, or adding classes, is fine; `WeakerClassification` else."""
        given = frozenset(classes)
        if unknown := given.difference(TOOL_CLASSES):
            raise ValueError(f"unknown tool class {sorted(unknown)} for tool {name!r}")
        key = _key(name)
        known = self._added.get(key, _BUILTIN.get(key, _NONE))
        if lost := known - given:
            raise WeakerClassification(name, lost)
        self._added[key] = given

    def classes(self, tool: str) -> frozenset[ToolClass]:
        """The classes of a tool; dangerous and external for a name that nobody classified."""
        key = _key(tool)
        added = self._added.get(key)
        return _BUILTIN.get(key, _UNCLASSIFIED) if added is None else added


class _BuiltinTable:
    def classes(self, tool: str) -> frozenset[ToolClass]:
        return _BUILTIN.get(_key(tool), _UNCLASSIFIED)


BUILTIN_TOOL_CLASSES: Final[ToolClassification] = _BuiltinTable()


def _key(name: str) -> str:
    return "bash" if name in SHELL_EQUIVALENTS else name
