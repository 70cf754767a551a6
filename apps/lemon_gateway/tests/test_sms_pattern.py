"""Patterns of a model that cannot do harm (specification lemon_gateway 7)."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from lemon_gateway.sms.messages import SmsMessage
from lemon_gateway.sms.pattern import (
    MAX_PATTERN_CHARS,
    DefaultRule,
    PatternRule,
    UnfitPattern,
    rule_for,
)
from lemon_gateway.tests.sms_rig import delivery

pytestmark = pytest.mark.anyio


@pytest.fixture
def threads() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(2)


def message(body: str) -> SmsMessage:
    found = SmsMessage.of_fields(delivery("SM1", body), 0)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pattern", "body", "code"),
    [
        (None, "1111 2222", "1111"),
        ("", "1111 2222", "1111"),
        (None, "no code", None),
        (r"[A-Z]{2}-\d+", "code AB-17 or CD-18", "AB-17"),
        (r"(?<=code )(\w)(\w+)", "your code xyz", "xyz"),
        (r"(\d{3})-(\d{3})", "123-456", "123-456"),
        (r"\d{9}", "1234", None),
        (r"\d*", "no digits", None),
        (r"\p{Lu}{3}", "abc ÄÖÜ", "ÄÖÜ"),
    ],
)
async def test_the_first_match_is_the_code(
    pattern: str | None, body: str, code: str | None, threads: anyio.CapacityLimiter
) -> None:
    """All of the match; an empty match is no code."""
    with anyio.fail_after(5):
        rule = await rule_for(pattern, threads)
        assert await rule.code_of(message(body)) == code


@pytest.mark.behaviour("lemon_gateway.32")
@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a{2,1}",
        "[z-a]",
        r"(?P<n>\d)(?P=m)",
        # Unrolled, each of these would take gigabytes or minutes before anything is matched.
        "(?:(?:a{5000}){5000}){5000}",
        "a{1000000000}",
        r"(?:ab?){1000000}",
        r"\p{L}{9999}" * 30,
        "(?x)(?:a{ 5 0 0 0 }){ 5 0 0 0 }",
        "a" * (MAX_PATTERN_CHARS + 1),
    ],
)
async def test_a_pattern_that_cannot_be_used_gives_way(
    pattern: str, threads: anyio.CapacityLimiter
) -> None:
    """To the default rule, before it has cost anything."""
    with anyio.fail_after(5):
        rule = await rule_for(pattern, threads)
    assert isinstance(rule, DefaultRule)
    assert await rule.code_of(message("use 1234")) == "1234"


@pytest.mark.behaviour("lemon_gateway.32")
@pytest.mark.parametrize("pattern", [r"(?:a|a|aa)+$", r"(a+)+c", r"(?:(((a+)+)+)+)+c"])
async def test_a_hostile_pattern_ends_and_the_loop_goes_on(
    pattern: str, threads: anyio.CapacityLimiter
) -> None:
    """Its match breaks off, and meanwhile the other tasks have had their turns."""
    rule = await rule_for(pattern, threads)
    assert isinstance(rule, PatternRule)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others)
            with pytest.raises(UnfitPattern):
                await rule.code_of(message("a" * 1_600 + "b"))
            tasks.cancel_scope.cancel()
    # A loop that is held has one turn or two before the match and after it.
    assert turns > 50
