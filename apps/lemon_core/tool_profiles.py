"""The named starting points of a tool policy.

A profile is plain field values. `ToolPolicy.parse` expands it at once, and the fields written
beside it can only tighten what it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from lemon_core.tool_classes import BROWSER_CHANGING, BROWSER_READING, MEDIA_MAKING, words

ProfileName = Literal[
    "full_access",
    "orchestrator",
    "leaf_worker",
    "minimal_core",
    "read_only",
    "safe_mode",
    "subagent_restricted",
    "no_external",
    "custom",
]
PROFILE_NAMES: Final[tuple[ProfileName, ...]] = get_args(ProfileName)

MINIMAL_CORE: Final = (
    *words(
        "read read_skill write edit hashline_edit patch grep find ls lsp_diagnostics bash jobs "
        "execute_code checkpoint remember recall skill_manage webfetch websearch todo goal kanban "
        "task agent extensions_status"
    ),
    *BROWSER_READING,
    *BROWSER_CHANGING,
    *MEDIA_MAKING,
    "media_status",
)
READ_ONLY: Final = words("read read_skill recall grep find ls lsp_diagnostics")

# `custom` says only that the fields are what they are, so it has nothing to expand to.
PROFILE_FIELDS: Final[Mapping[ProfileName, Mapping[str, object]]] = {
    "full_access": {},
    "orchestrator": {},
    "leaf_worker": {"deny_classes": ("delegation",)},
    "minimal_core": {"allow": MINIMAL_CORE},
    "read_only": {"allow": READ_ONLY},
    "safe_mode": {"deny_classes": ("dangerous",)},
    "subagent_restricted": {
        "deny_classes": ("dangerous",),
        "require_approval": ("write", "edit", "hashline_edit", "patch"),
    },
    "no_external": {"deny_classes": ("external",)},
}
