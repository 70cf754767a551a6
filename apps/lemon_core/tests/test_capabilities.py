"""The capability registry (specification lemon_core 5)."""

from __future__ import annotations

import pytest

from lemon_core.capabilities import AlreadyConfigured, Capabilities

pytestmark = pytest.mark.behaviour("lemon_core.10")


def test_if_unset_refuses_another_implementation_and_accepts_the_same() -> None:
    registry = Capabilities()
    first, second = object(), object()
    registry.register("router", first, mode="if_unset")
    registry.register("router", first, mode="if_unset")
    with pytest.raises(AlreadyConfigured) as caught:
        registry.register("router", second, mode="if_unset")
    assert (caught.value.key, caught.value.existing) == ("router", first)
    assert registry.get("router") is first
    registry.register("router", second)
    assert registry.get("router") is second


def test_clear_leaves_a_newer_registration_alone() -> None:
    registry = Capabilities()
    old, new = object(), object()
    registry.register("router", new)
    registry.clear("router", old)
    assert registry.get("router") is new
    registry.clear("router")
    assert registry.get("router") is None


def test_contributions_keep_order_and_come_once() -> None:
    registry = Capabilities()
    one, two = object(), object()
    for item in (one, two, one):
        registry.contribute("doctor_checks", item)
    assert registry.contributions("doctor_checks") == (one, two)
    assert registry.contributions("other") == ()
