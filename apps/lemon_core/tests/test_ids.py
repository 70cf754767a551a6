"""Ids and times (specification lemon_core 2)."""

from __future__ import annotations

import uuid

import pytest

from lemon_core import ids


@pytest.mark.parametrize(
    ("make", "prefix"),
    [
        (ids.run_id, "run_"),
        (ids.session_id, "sess_"),
        (ids.approval_id, "appr_"),
        (ids.cron_id, "cron_"),
        (ids.skill_id, "skill_"),
        (ids.new_uuid, ""),
        (lambda: ids.idempotency_key("hook", "send"), "hook:send:"),
    ],
)
def test_ids_are_a_prefix_and_a_random_uuid(make: object, prefix: str) -> None:
    assert callable(make)
    one, other = make(), make()
    assert one != other
    parsed = uuid.UUID(one.removeprefix(prefix))
    assert one == f"{prefix}{parsed}"
    assert parsed.version == 4


def test_what_is_exactly_as_old_as_allowed_is_still_valid() -> None:
    assert not ids.expired(100, 50, now=150)
    assert ids.expired(100, 50, now=151)
