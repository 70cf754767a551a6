"""Messages of the media stream: what they mean, and that no message ends a call."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_gateway.voice.frames import (
    InboundAudio,
    MarkReached,
    StreamStart,
    StreamStop,
    clear_message,
    mark_message,
    media_message,
    parse_frame,
)

SOUND = bytes(range(160))
PAYLOAD = base64.b64encode(SOUND).decode()


def media(payload: object = PAYLOAD, **more: object) -> str:
    return json.dumps({"event": "media", "media": {"payload": payload, **more}})


def test_a_start_names_stream_call_and_parameters() -> None:
    """Specification lemon_gateway 8: media frames in."""
    start = {
        "streamSid": "MZ1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "customParameters": {"token": "t", "from": "+1", "odd": 7},
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    }
    text = json.dumps({"event": "start", "start": start, "streamSid": "MZ1"})
    assert parse_frame(text) == StreamStart("MZ1", "CA1", {"token": "t", "from": "+1", "odd": ""})


def test_a_start_without_anything_has_empty_names() -> None:
    """Specification lemon_gateway 8: a start may miss what it likes."""
    assert parse_frame('{"event": "start"}') == StreamStart("", "", {})


@pytest.mark.behaviour("lemon_gateway.34")
@pytest.mark.parametrize("text", [media(), media(track="inbound")])
def test_sound_of_the_caller_is_taken(text: str) -> None:
    """Specification lemon_gateway 8: track `inbound` or absent."""
    assert parse_frame(text) == InboundAudio(SOUND)


@pytest.mark.behaviour("lemon_gateway.34")
def test_the_outbound_track_is_ignored() -> None:
    """Specification lemon_gateway 13, row 34: what the caller hears is no word of the caller's."""
    assert parse_frame(media(track="outbound")) is None


@pytest.mark.behaviour("lemon_gateway.34")
@pytest.mark.parametrize("payload", ["***", "abc", "äöü=", 7, None, ""])
def test_bad_base64_is_skipped(payload: object) -> None:
    """Specification lemon_gateway 13, row 34."""
    assert parse_frame(media(payload)) is None


@pytest.mark.behaviour("lemon_gateway.34")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"media"',
        "{}",
        '{"event": 7}',
        '{"event": "media"}',
        '{"event": "media", "media": []}',
        "[" * 100_000,
        '{"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": "1"}}',
        '{"event": "connected", "protocol": "Call", "version": "1.0.0"}',
        '{"event": "unheard-of"}',
    ],
)
def test_what_cannot_be_read_or_means_nothing_is_ignored(text: str) -> None:
    """Specification lemon_gateway 8: unknown and undecodable frames, `connected`, `dtmf`."""
    assert parse_frame(text) is None


@given(
    st.text() | st.recursive(st.none() | st.text(), lambda inner: st.lists(inner)).map(json.dumps)
)
def test_no_text_is_an_error(text: str) -> None:
    """Specification lemon_gateway 8: whatever comes, the call goes on."""
    parse_frame(text)


def test_a_mark_and_a_stop() -> None:
    """Specification lemon_gateway 8: media frames in."""
    assert parse_frame('{"event": "mark", "mark": {"name": "m"}}') == MarkReached("m")
    assert parse_frame('{"event": "stop", "stop": {"callSid": "CA1"}}') == StreamStop()


def test_what_goes_out_has_the_documented_form() -> None:
    """Specification lemon_gateway 8: frames out."""
    assert json.loads(media_message("MZ1", SOUND)) == {
        "event": "media",
        "streamSid": "MZ1",
        "media": {"payload": PAYLOAD},
    }
    assert json.loads(mark_message("MZ1", "m")) == {
        "event": "mark",
        "streamSid": "MZ1",
        "mark": {"name": "m"},
    }
    assert json.loads(clear_message("MZ1")) == {"event": "clear", "streamSid": "MZ1"}
