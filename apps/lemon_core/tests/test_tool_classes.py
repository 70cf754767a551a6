"""Tool classes (specification lemon_core 6.1)."""

from __future__ import annotations

from typing import cast

import pytest

from lemon_core.tool_classes import (
    BUILTIN_TOOL_CLASSES,
    SHELL_EQUIVALENTS,
    ToolClass,
    ToolClassTable,
    WeakerClassification,
)
from lemon_core.tool_profiles import MINIMAL_CORE

WITHOUT_CLASS = {
    "read",
    "read_skill",
    "recall",
    "grep",
    "find",
    "ls",
    "lsp_diagnostics",
    "todo",
    "goal",
    "kanban",
    "extensions_status",
}


@pytest.mark.parametrize(
    ("tool", "classes"),
    [
        ("read", set()),
        ("bash", {"dangerous"}),
        ("remember", {"dangerous"}),
        ("task", {"delegation"}),
        ("agent", {"dangerous", "delegation"}),
        ("webfetch", {"external"}),
        ("browser_snapshot", {"external"}),
        ("browser_click", {"dangerous", "external"}),
        ("media_status", {"external"}),
        ("media_generate_image", {"dangerous", "external"}),
        ("mcp_unknown", {"dangerous", "external"}),
    ],
)
def test_the_built_in_table(tool: str, classes: set[str]) -> None:
    assert BUILTIN_TOOL_CLASSES.classes(tool) == classes
    assert ToolClassTable().classes(tool) == classes


def test_only_the_reading_tools_of_minimal_core_have_no_class() -> None:
    plain = {tool for tool in MINIMAL_CORE if not BUILTIN_TOOL_CLASSES.classes(tool)}
    assert plain == WITHOUT_CLASS


def test_an_app_classifies_its_own_tools() -> None:
    table = ToolClassTable()
    table.classify("ask_parent", ())
    table.classify("mcp_x", ("external",))
    assert table.classes("ask_parent") == frozenset()
    assert table.classes("mcp_x") == {"external"}
    assert BUILTIN_TOOL_CLASSES.classes("mcp_x") == {"dangerous", "external"}


def test_a_classification_gains_classes_and_never_loses_one() -> None:
    table = ToolClassTable()
    table.classify("read", ("external",))
    assert table.classes("read") == {"external"}
    with pytest.raises(WeakerClassification) as caught:
        table.classify("write", ())
    assert caught.value.tool == "write"
    assert caught.value.lost == {"dangerous"}
    assert table.classes("write") == {"dangerous"}


@pytest.mark.parametrize("tool", sorted(SHELL_EQUIVALENTS))
def test_what_equals_the_shell_is_classed_like_it(tool: str) -> None:
    table = ToolClassTable()
    assert table.classes(tool) == table.classes("bash")
    table.classify("bash", ("dangerous", "external"))
    assert table.classes(tool) == {"dangerous", "external"}
    with pytest.raises(WeakerClassification):
        table.classify(tool, ())


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown tool class"):
        ToolClassTable().classify("x", (cast(ToolClass, "harmless"),))
