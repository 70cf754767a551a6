"""Which addresses are asked for a URL that somebody else chose, and that aiohttp asks no other."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import aiohttp
import anyio
import pytest

from lemon_core.address_guard import (
    AddressGuard,
    AddressRefused,
    guarded_connector,
    literal_address,
)

pytestmark = pytest.mark.anyio


def names(**known: Sequence[str]) -> AddressGuard:
    async def lookup(host: str, port: int) -> Sequence[str]:
        found = known.get(host.partition(".")[0])
        if found is None:
            raise OSError(f"no such name: {host}")
        return found

    return AddressGuard(lookup)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "printer.local",
        "10.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0.0.0.0",
        "169.254.1.1",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
        # What the client reads as 127.0.0.1 and localhost.
        "\uff11\uff12\uff17.0.0.1",
        "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
        "127\u30020\u30020\u30021",
        "\uff4cocalhost",
        "169.254.169.254",
        "metadata.google.internal",
        "[fe80::1%25eth0]",
        "[64:ff9b:1::7f00:1]",
        "[::ffff:0:7f00:1]",
        "[::127.0.0.1]",
        "[2001:0:7f00:1::]",
        "[fec0::1]",
        # Public by its number; every machine of one cloud finds its own host there.
        "168.63.129.16",
        "127.0.0.1..",
        "0177.0.0.1.",
    ],
)
def test_an_address_that_is_not_public_is_refused_however_it_is_written(host: str) -> None:
    with pytest.raises(AddressRefused):
        names().check_url(f"http://{host}/x")


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "http:///x", "http://a@example.com/", "http://example.com:0/", "x", ""],
)
def test_what_is_no_plain_web_address_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        names().check_url(url)


def test_a_public_name_is_named_as_it_will_be_asked_for() -> None:
    assert names().check_url("https://Example.COM.:8443/a?b#c") == "example.com"
    assert names().check_url("http://[2606:4700::1111]/") == "2606:4700::1111"


def test_the_keys_of_a_cloud_are_refused_even_where_private_addresses_are_not() -> None:
    relaxed = AddressGuard(names().lookup, allow_private=True)
    assert relaxed.check_url("http://10.0.0.1/") == "10.0.0.1"
    for host in (
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[::ffff:a9fe:a9fe]",
        "[::ffff:0:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "0xa9fea9fe",
        "metadata.google.internal.",
    ):
        with pytest.raises(AddressRefused):
            relaxed.check_url(f"http://{host}/")


def test_what_is_refused_is_told_without_the_rest_of_the_url() -> None:
    """The words go into logs, and a URL may hold a password or a token."""
    for url in (
        "ftp://me:hunter2@example.com/?token=hunter2",
        "http://me:hunter2@example.com/",
        "http://[hunter2/",
        "http://127.0.0.1/?token=hunter2",
        "http://example.com/ hunter2",
    ):
        with pytest.raises(AddressRefused) as told:
            names().check_url(url)
        assert "hunter2" not in str(told.value)


async def test_every_address_of_a_name_has_to_be_public() -> None:
    guard = names(good=["93.184.216.34"], mixed=["93.184.216.34", "10.0.0.1"])
    assert await guard.addresses("good.example", 80) == ["93.184.216.34"]
    with pytest.raises(AddressRefused):
        await guard.addresses("mixed.example", 80)
    with pytest.raises(OSError, match="no such name"):
        await guard.addresses("absent.example", 80)


async def test_the_connection_goes_to_an_address_that_was_judged() -> None:
    """A private one is refused at that moment, whatever it was before."""
    refused = names(turned=["127.0.0.1"])
    async with aiohttp.ClientSession(connector=guarded_connector(refused)) as session:
        with anyio.fail_after(5), pytest.raises(AddressRefused):
            await session.get("http://turned.example:1/")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    relaxed = AddressGuard(names(here=["127.0.0.1"]).lookup, allow_private=True)
    async with aiohttp.ClientSession(connector=guarded_connector(relaxed)) as session:
        with anyio.move_on_after(1) as waiting:
            listener.close()
            with pytest.raises(aiohttp.ClientConnectorError, match="here"):
                await session.get(f"http://here.example:{port}/")
        assert not waiting.cancelled_caught


def test_addresses_in_odd_notations() -> None:
    assert str(literal_address("0177.1")) == "127.0.0.1"
    assert literal_address("127.0.0.1.example") is None
