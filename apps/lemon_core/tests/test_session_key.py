"""Session keys (specification lemon_core 3.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core import session_key
from lemon_core.session_key import PEER_KINDS, InvalidSessionKey, ParsedSessionKey

pytestmark = pytest.mark.behaviour("lemon_core.1")

ids = st.text(
    st.characters(blacklist_categories=["C", "Z"], blacklist_characters=":"),
    min_size=1,
    max_size=12,
)
optional = st.none() | ids


@given(agent=ids, sub=optional)
def test_main_keys_round_trip(agent: str, sub: str | None) -> None:
    key = session_key.main(agent, sub_id=sub)
    assert session_key.parse(key) == ParsedSessionKey(agent, "main", sub_id=sub)
    assert session_key.agent_id(key) == agent


@given(
    agent=ids,
    channel=ids.filter(lambda text: text != "main"),
    account=ids,
    kind=st.sampled_from(PEER_KINDS),
    peer=ids,
    thread=optional,
    sub=optional,
)
def test_channel_keys_round_trip(
    agent: str,
    channel: str,
    account: str,
    kind: str,
    peer: str,
    thread: str | None,
    sub: str | None,
) -> None:
    key = session_key.channel_peer(
        agent, channel, account, kind, peer, thread_id=thread, sub_id=sub
    )
    assert session_key.parse(key) == ParsedSessionKey(
        agent, "channel_peer", channel, account, kind, peer, thread, sub
    )


def test_extras_may_come_in_any_order() -> None:
    parsed = session_key.parse("agent:a:telegram:bot:dm:7:sub:s:thread:t")
    assert (parsed.thread_id, parsed.sub_id) == ("t", "s")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "agent",
        "agent:a",
        "agent::main",
        "agent:a:main:sub",
        "agent:a:main:sub:",
        "agent:a:main:thread:t",
        "agent:a:main:sub:1:sub:2",
        "agent:a:telegram:bot:dm:7:thread",
        "agent:a:telegram:bot:dm:7:thread:1:thread:2",
        "agent:a:telegram:bot:dm:7:other:1",
        "agent:a:telegram:bot:dm:",
        "agent:a:ma\nin",
        "session:a:main",
    ],
)
def test_malformed_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidSessionKey) as caught:
        session_key.parse(key)
    assert caught.value.reason == "invalid"
    assert not session_key.is_valid(key)
    assert session_key.agent_id(key) is None


def test_an_unknown_peer_kind_is_named() -> None:
    with pytest.raises(InvalidSessionKey) as caught:
        session_key.parse("agent:a:telegram:bot:robot:7")
    assert caught.value.reason == "invalid_peer_kind"


@pytest.mark.parametrize("part", ["", "a:b", "a\tb"])
def test_builders_refuse_what_would_not_parse_back(part: str) -> None:
    with pytest.raises(InvalidSessionKey):
        session_key.main(part)
    with pytest.raises(InvalidSessionKey):
        session_key.channel_peer("a", "telegram", "bot", "dm", part)


@pytest.mark.parametrize(
    ("key", "main", "channel"),
    [
        ("agent:a:main", True, False),
        ("agent:a:main:sub:1", True, False),
        ("agent:a:telegram:bot:dm:7", False, True),
        # A peer kind called main is a channel's conversation all the same.
        ("agent:a:telegram:bot:main:7", False, True),
        ("agent:a", False, False),
        (None, False, False),
    ],
)
def test_the_two_kinds_are_told_apart(key: object, main: bool, channel: bool) -> None:
    """Specification lemon_core 3.1."""
    assert (session_key.is_main(key), session_key.is_channel_peer(key)) == (main, channel)
