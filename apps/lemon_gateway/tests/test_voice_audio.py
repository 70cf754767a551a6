"""The sound of calls against the reference codes, and cut into frames however it arrives."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_gateway.voice.audio import (
    FRAME_BYTES,
    Framer,
    is_mp3,
    is_usable_format,
    pcm16_to_ulaw,
)

REFERENCE = {
    0: 0xFF,
    -1: 0x7F,
    4: 0xFE,
    100: 0xF2,
    1_000: 0xCE,
    -1_000: 0x4E,
    16_000: 0x90,
    32_767: 0x80,
    -32_768: 0x00,
}


def pcm(*samples: int) -> bytes:
    return struct.pack(f"<{len(samples)}h", *samples)


def g711(sample: int) -> int:
    """The code as the standard's formula gives it, sample by sample."""
    sign = 0x80 if sample < 0 else 0
    magnitude = min(abs(sample), 32_635) + 132
    exponent = magnitude.bit_length() - 8
    return ~(sign | exponent << 4 | magnitude >> exponent + 3 & 0xF) & 0xFF


def framed(output_format: str, *pieces: bytes) -> tuple[list[bytes], Framer]:
    framer = Framer(output_format)
    frames = [frame for piece in pieces for frame in framer.feed(piece)]
    return [*frames, *framer.end()], framer


@pytest.mark.behaviour("lemon_gateway.33")
@pytest.mark.parametrize(("sample", "code"), REFERENCE.items())
def test_a_reference_sample_has_its_code(sample: int, code: int) -> None:
    """Specification lemon_gateway 8: the reference codes."""
    assert pcm16_to_ulaw(pcm(sample)) == bytes([code])


def test_every_sample_has_the_code_of_the_formula() -> None:
    """ITU-T G.711: the table and the formula agree."""
    samples = range(-32_768, 32_768)
    assert pcm16_to_ulaw(pcm(*samples)) == bytes(map(g711, samples))


@pytest.mark.behaviour("lemon_gateway.33")
def test_twenty_milliseconds_are_160_bytes() -> None:
    """Specification lemon_gateway 13, row 33."""
    assert len(pcm16_to_ulaw(pcm(*range(160)))) == 160 == FRAME_BYTES


@pytest.mark.behaviour("lemon_gateway.33")
def test_an_odd_byte_at_the_end_is_dropped() -> None:
    """Specification lemon_gateway 13, row 33: alone, and at the end of a stream."""
    assert pcm16_to_ulaw(pcm(0, 4) + b"\x55") == b"\xff\xfe"
    assert pcm16_to_ulaw(b"\x55") == b""
    assert framed("pcm_8000", pcm(0, 4) + b"\x55")[0] == [b"\xff\xfe"]


@pytest.mark.behaviour("lemon_gateway.33")
@pytest.mark.parametrize(
    "start", [b"ID3\x04", b"\xff\xfb\x90\x00", b"\xff\xf3", b"\xff\xe3\x18\xc4"]
)
def test_mp3_is_known_by_its_first_bytes(start: bytes) -> None:
    """Specification lemon_gateway 8: a tag, or eleven set bits."""
    assert is_mp3(start)
    frames, framer = framed("mp3_44100_128", start + bytes(400))
    assert (frames, framer.kind) == ([], "mp3")


@pytest.mark.behaviour("lemon_gateway.33")
@pytest.mark.parametrize("start", [b"", b"\xff", b"ID", b"\xff\xdf", b"\x00\xff\xfb", pcm(-1, -1)])
def test_what_is_no_mp3_is_not_taken_for_it(start: bytes) -> None:
    """Specification lemon_gateway 8; quiet sound that begins with -1 among it."""
    assert not is_mp3(start)


def test_mp3_that_was_not_ordered_is_not_played_as_noise() -> None:
    """Specification lemon_gateway 8: whatever was ordered, the bytes decide."""
    frames, framer = framed("pcm_8000", b"ID3" + bytes(2_000))
    assert (frames, framer.kind) == ([], "mp3")


def test_ulaw_passes_through_even_where_it_looks_like_mp3() -> None:
    """Specification lemon_gateway 8: silence is FF in mu-law."""
    sound = b"\xff" * 400
    frames, framer = framed("ulaw_8000", sound)
    assert [len(frame) for frame in frames] == [160, 160, 80]
    assert (b"".join(frames), framer.kind) == (sound, "ulaw")


def test_pcm_of_a_higher_rate_is_played_at_its_speed() -> None:
    """16,000 samples a second become 8,000."""
    samples = [value for value in range(320) for _ in range(2)]
    frames, _ = framed("pcm_16000", pcm(*samples))
    assert b"".join(frames) == pcm16_to_ulaw(pcm(*range(320)))


@pytest.mark.parametrize(
    ("output_format", "is_usable"),
    [
        ("ulaw_8000", True),
        ("pcm_8000", True),
        ("pcm_24000", True),
        ("pcm_22050", False),
        ("pcm_", False),
        ("pcm_0", False),
        ("mp3_44100_128", False),
        ("opus_48000_64", False),
    ],
)
def test_formats_that_cannot_be_put_on_the_line_are_named(
    output_format: str, is_usable: bool
) -> None:
    """What is ordered can be judged before a call."""
    assert is_usable_format(output_format) is is_usable


def test_sound_of_an_unusable_rate_is_not_played() -> None:
    """Speech at the wrong speed would be worse than none."""
    frames, framer = framed("pcm_22050", pcm(*range(300)))
    assert (frames, framer.kind) == ([], "other")


@given(
    output_format=st.sampled_from(["ulaw_8000", "pcm_8000", "pcm_24000"]),
    sound=st.binary(max_size=3_000).map(lambda tail: b"\x01\x02\x03" + tail),
    cuts=st.lists(st.integers(0, 3_003)),
)
def test_it_does_not_matter_how_sound_is_cut(
    output_format: str, sound: bytes, cuts: list[int]
) -> None:
    """The same frames, all whole but the last, in whatever pieces the sound comes."""
    edges = [0, *sorted(cuts), len(sound)]
    pieces = [sound[begin:end] for begin, end in pairwise(edges)]
    at_once, _ = framed(output_format, sound)
    in_pieces, _ = framed(output_format, *pieces)
    assert in_pieces == at_once
    assert all(len(frame) == FRAME_BYTES for frame in at_once[:-1])
