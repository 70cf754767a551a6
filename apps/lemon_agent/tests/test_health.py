from __future__ import annotations

import pytest

from lemon_agent.runtime.health import CredentialHealth, Pin, PoolRotator, SessionPins
from lemon_ai.types import ErrorCategory, ErrorInfo, RateLimitInfo
from lemon_core.testing import FakeClock

pytestmark = pytest.mark.anyio

HOUR = 3_600_000


def failure(category: ErrorCategory, retry_after_ms: int | None = None) -> ErrorInfo:
    limits = None if retry_after_ms is None else RateLimitInfo(retry_after_ms=retry_after_ms)
    return ErrorInfo(category=category, message="no", rate_limit_info=limits)


@pytest.mark.behaviour("lemon_agent.19")
@pytest.mark.parametrize(
    ("category", "pauses"),
    [
        ("rate_limit", [15_000, 30_000, 60_000, 120_000, 240_000, 300_000, 300_000]),
        ("auth", [300_000, 600_000, 1_200_000, 2_400_000, 3_600_000, 3_600_000]),
        ("server", [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]),
        ("transient", [2_000, 4_000]),
        ("unknown", [2_000, 4_000]),
        ("client", [0, 0]),
        ("context_length", [0, 0]),
    ],
)
def test_pauses_grow_by_the_kind_of_failure(category: ErrorCategory, pauses: list[int]) -> None:
    health = CredentialHealth(FakeClock())
    assert [health.failed("openai", "a", failure(category)) for _ in pauses] == pauses


@pytest.mark.behaviour("lemon_agent.19")
async def test_a_named_wait_counts_as_it_is_and_success_clears() -> None:
    clock = FakeClock()
    health = CredentialHealth(clock)
    assert health.failed("openai", "a", failure("rate_limit", 1_234_567)) == 1_234_567
    await clock.advance(1_234_566)
    assert health.rests("openai", "a")
    await clock.advance(1)
    assert not health.rests("openai", "a")
    assert health.failed("openai", "a", failure("rate_limit")) == 30_000
    assert not health.rests("openai", "b")
    assert not health.rests("groq", "a")
    health.succeeded("openai", "a")
    assert not health.rests("openai", "a")
    assert health.failed("openai", "a", failure("rate_limit")) == 15_000


@pytest.mark.behaviour("lemon_agent.19")
def test_a_refusal_of_our_own_is_no_news_about_the_credential() -> None:
    health = CredentialHealth(FakeClock())
    local = failure("rate_limit").model_copy(update={"local": True})
    assert health.failed("openai", "a", local) == 0
    assert not health.rests("openai", "a")


def test_resting_credentials_are_passed_over_unless_all_rest() -> None:
    health = CredentialHealth(FakeClock())
    health.failed("openai", "a", failure("auth"))
    assert health.usable("openai", ["a", "b"]) == ["b"]
    health.failed("openai", "b", failure("auth"))
    assert health.usable("openai", ["a", "b"]) == ["a", "b"]


@pytest.mark.behaviour("lemon_agent.20")
async def test_a_pool_takes_turns_and_a_session_keeps_its_place() -> None:
    clock = FakeClock()
    rotator = PoolRotator(clock)
    assert [rotator.order("p", "abc")[0] for _ in range(4)] == ["a", "b", "c", "a"]
    assert rotator.order("p", "abc", session="s1") == ["b", "c", "a"]
    assert rotator.order("p", "abc", session="s2") == ["c", "a", "b"]
    assert rotator.order("p", "abc", session="s1") == ["b", "c", "a"]
    assert rotator.order("other", "ab") == ["a", "b"]
    assert rotator.order("p", "a", session="s3") == ["a"]
    for _ in range(7):
        await clock.advance(24 * HOUR)
        rotator.order("p", "abc", session="s2")
    await clock.advance(HOUR)
    rotator.order("p", "abc")
    assert len(rotator) == 1


async def test_pins_are_by_session_and_leave_after_a_week() -> None:
    clock = FakeClock()
    pins = SessionPins(clock)
    pin = Pin("openai", "a")
    pins.set("s", pin)
    pins.set(None, pin)
    assert (pins.get("s"), pins.get(None), pins.get("other")) == (pin, None, None)
    pins.clear("s")
    pins.clear(None)
    assert pins.get("s") is None
    pins.set("s", pin)
    await clock.advance(8 * 24 * HOUR)
    assert pins.get("other") is None
    assert len(pins) == 0
