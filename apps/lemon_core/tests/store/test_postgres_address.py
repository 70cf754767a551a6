"""Addresses and messages without passwords (specification lemon_core 8.2)."""

from __future__ import annotations

import anyio
import psycopg
import pytest

from lemon_core.store import StoreUnavailable
from lemon_core.store.postgres_address import PostgresAddress
from lemon_core.tests.store.nodes import Node

pytestmark = pytest.mark.anyio


SECRET = "pa55%3Aword"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/lemon", "PostgreSQL database lemon on 127.0.0.1:1"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/lemon?nonsense=1", "postgresql://user:password@"),
        (f"mysql://me:{SECRET}@h/lemon", "postgresql://user:password@host:port/database"),
        (f"host=127.0.0.1 password={SECRET}", "postgresql://user:password@host:port/database"),
    ],
)
async def test_what_cannot_be_reached_is_one_line_without_the_password(url: str, told: str) -> None:
    with anyio.fail_after(5), pytest.raises(StoreUnavailable) as caught:
        await Node(url).store.open()
    message = str(caught.value)
    assert told in message
    assert "\n" not in message
    shown = [message, repr(caught.value), repr(caught.value.__cause__)]
    for text in (SECRET, "pa55:word"):
        assert not any(text in said for said in shown)


def test_an_address_does_not_show_its_password() -> None:
    address = PostgresAddress.parse(f"postgresql://me:{SECRET}@db.example/lemon")
    assert "pa55" not in repr(address)
    refused = psycopg.errors.InsufficientPrivilege("no such thing for pa55:word")
    assert "pa55" not in str(address.translate(refused, writing=True))
