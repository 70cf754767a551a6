"""What a run's tools may do, and the arithmetic that only ever takes away.

A `ToolPolicy` comes from strict parsing or from `intersect`. Both give the canonical form: the
profile is already expanded, names are trimmed, unique and sorted. So equal policies compare equal,
`parse(dump())` is the identity and a query is a plain lookup. `intersect` is the one way to combine
two policies, and its result never permits what either side forbids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from lemon_core import command_rules
from lemon_core.policy_fields import (
    FIELD_NAMES,
    ApprovalMode,
    InvalidPolicyCode,
    InvalidToolPolicy,
    parse_fields,
)
from lemon_core.tool_classes import (
    BUILTIN_TOOL_CLASSES,
    CODE_RUNNERS,
    SHELL_EQUIVALENTS,
    ToolClass,
    ToolClassification,
)
from lemon_core.tool_profiles import PROFILE_FIELDS, ProfileName

__all__ = [
    "ApprovalAnswer",
    "ApprovalMode",
    "DenialReason",
    "InvalidPolicyCode",
    "InvalidToolPolicy",
    "ToolPolicy",
    "intersect",
]

ApprovalAnswer = Literal["always", "dangerous", "never", "default"]
DenialReason = Literal["denied", "blocked", "class_denied", "not_allowed"]

_STRICTNESS: Final[Mapping[ApprovalAnswer, int]] = {
    "never": 0,
    "default": 1,
    "dangerous": 2,
    "always": 3,
}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Tool = TypeVar("_Tool", bound="str | _Named")


class ToolPolicy(BaseModel):
    """The tools, commands and file sizes of a run, and which calls have to be approved first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: Literal["all"] | tuple[str, ...] = "all"
    deny: tuple[str, ...] = ()
    blocked_tools: tuple[str, ...] = ()
    require_approval: tuple[str, ...] = ()
    approvals: Mapping[str, ApprovalMode] = {}
    deny_classes: tuple[ToolClass, ...] = ()
    allowed_commands: tuple[str, ...] | None = None
    blocked_commands: tuple[str, ...] = ()
    max_file_size: int | None = None
    sandbox: bool = False
    no_reply: bool = False
    profile: ProfileName | None = None

    @model_validator(mode="before")
    @classmethod
    def _canonical(cls, value: object) -> object:
        if isinstance(value, ToolPolicy):
            return value
        return dict(cls.parse(value))

    @model_serializer
    def _serialised(self) -> dict[str, object]:
        return self.dump()

    @classmethod
    def parse(cls, value: object) -> ToolPolicy:
        """The policy that `value` (a mapping, or a policy already) spells.

        Its profile is expanded and the other fields tighten that. Raises `InvalidToolPolicy`.
        """
        if isinstance(value, ToolPolicy):
            return value
        fields = parse_fields(value)
        written = cls.model_construct(**fields)
        profile = fields["profile"]
        if profile is None or profile not in PROFILE_FIELDS:
            return written
        return _meet(_expanded(profile), written, profile)

    @classmethod
    def of_profile(cls, name: ProfileName) -> ToolPolicy:
        """The policy that a profile stands for."""
        return _of_profile(name)

    @classmethod
    def full_access(cls) -> ToolPolicy:
        """The policy that forbids nothing: where every fold of layers begins."""
        return _of_profile("full_access")

    def dump(self) -> dict[str, object]:
        """The canonical JSON form, with every key; `parse` reads it back to an equal policy."""
        dumped = {name: _plain(getattr(self, name)) for name in FIELD_NAMES}
        return dumped

    def denial_reason(
        self, tool: str, classes: ToolClassification = BUILTIN_TOOL_CLASSES
    ) -> DenialReason | None:
        """Why `tool` may not be used, or None when it may.

        Forbidding `bash` by name forbids what is as strong as it (`execute_code`, `jobs`, `debug`).
        """
        names = {tool, "bash"} if tool in SHELL_EQUIVALENTS else {tool}
        if not names.isdisjoint(self.deny):
            return "denied"
        if not names.isdisjoint(self.blocked_tools):
            return "blocked"
        if not classes.classes(tool).isdisjoint(self.deny_classes):
            return "class_denied"
        if self.allow != "all" and tool not in self.allow:
            return "not_allowed"
        return None

    def allowed(self, tool: str, classes: ToolClassification = BUILTIN_TOOL_CLASSES) -> bool:
        """True when `tool` may be used."""
        return self.denial_reason(tool, classes) is None

    def filter_tools(
        self, tools: Iterable[_Tool], classes: ToolClassification = BUILTIN_TOOL_CLASSES
    ) -> list[_Tool]:
        """The tools (names, or objects with a `name`) that may be used, in their order."""
        return [
            tool
            for tool in tools
            if self.allowed(tool if isinstance(tool, str) else tool.name, classes)
        ]

    def approval_mode(self, tool: str) -> ApprovalAnswer:
        """When a call of `tool` has to be approved; `default` when the policy does not say.

        What is asked about `bash` is asked about what runs code as freely, unless more is.
        """
        own, shell = self._said_of(tool), self._said_of("bash")
        if tool not in CODE_RUNNERS or shell == "default":
            return own
        return max(own, shell, key=_STRICTNESS.__getitem__)

    def _said_of(self, tool: str) -> ApprovalAnswer:
        return "always" if tool in self.require_approval else self.approvals.get(tool, "default")

    def requires_approval(
        self,
        tool: str,
        dangerous_action: bool = False,
        classes: ToolClassification = BUILTIN_TOOL_CLASSES,
    ) -> bool:
        """True when this call has to be approved.

        Mode `dangerous` asks for dangerous tools, and for an action that its tool calls dangerous.
        """
        mode = self.approval_mode(tool)
        if mode == "dangerous":
            return dangerous_action or "dangerous" in classes.classes(tool)
        return mode == "always"

    def command_allowed(self, command: str) -> bool:
        """True when the shell may run `command` (see `command_rules` for what a list means)."""
        if self.blocked_commands and command_rules.blocked_by(self.blocked_commands, command):
            return False
        if self.allowed_commands is None:
            return True
        return command_rules.allowed_by(self.allowed_commands, command)


def intersect(ceiling: ToolPolicy, request: ToolPolicy | None) -> ToolPolicy:
    """What both policies permit; a missing request inherits the ceiling."""
    if request is None or request is ceiling:
        return ceiling
    same = ceiling.profile == request.profile
    return _meet(ceiling, request, ceiling.profile if same else "custom")


def _meet(one: ToolPolicy, other: ToolPolicy, profile: ProfileName | None) -> ToolPolicy:
    return ToolPolicy.model_construct(
        allow=_both_allow(one.allow, other.allow),
        deny=_union(one.deny, other.deny),
        blocked_tools=_union(one.blocked_tools, other.blocked_tools),
        require_approval=_union(one.require_approval, other.require_approval),
        approvals=_stricter(one.approvals, other.approvals),
        deny_classes=tuple(sorted({*one.deny_classes, *other.deny_classes})),
        allowed_commands=_both_commands(one.allowed_commands, other.allowed_commands),
        blocked_commands=_union(one.blocked_commands, other.blocked_commands),
        max_file_size=_smaller(one.max_file_size, other.max_file_size),
        sandbox=one.sandbox or other.sandbox,
        no_reply=one.no_reply or other.no_reply,
        profile=profile,
    )


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if not one or not other:
        return one or other
    return tuple(sorted({*one, *other}))


def _both_allow(
    one: Literal["all"] | tuple[str, ...], other: Literal["all"] | tuple[str, ...]
) -> Literal["all"] | tuple[str, ...]:
    if one == "all":
        return other
    return one if other == "all" else tuple(sorted({*one}.intersection(other)))


def _stricter(
    one: Mapping[str, ApprovalMode], other: Mapping[str, ApprovalMode]
) -> dict[str, ApprovalMode]:
    """Per tool the stricter of the two answers; silence counts as `default`, above `never`."""
    met: dict[str, ApprovalMode] = {}
    for tool in sorted({*one, *other}):
        answers: tuple[ApprovalAnswer, ...] = (
            one.get(tool, "default"),
            other.get(tool, "default"),
        )
        strictest = max(answers, key=_STRICTNESS.__getitem__)
        if strictest != "default":
            met[tool] = strictest
    return met


def _both_commands(
    one: tuple[str, ...] | None, other: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The narrower entry of every two that overlap; no overlap leaves nothing, not everything."""
    if one is None or other is None:
        return one if other is None else other
    return command_rules.overlap(one, other)


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


@cache
def _expanded(profile: ProfileName) -> ToolPolicy:
    return ToolPolicy.model_construct(**parse_fields(PROFILE_FIELDS[profile]))


@cache
def _of_profile(profile: ProfileName) -> ToolPolicy:
    return ToolPolicy.parse({"profile": profile})
