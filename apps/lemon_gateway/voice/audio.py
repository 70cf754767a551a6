"""The sound of a phone call: G.711 mu-law at 8 kHz, one byte per sample, 160 of them in 20 ms."""

from __future__ import annotations

import struct
import sys
from array import array
from functools import cache
from typing import Final, Literal

SAMPLE_RATE: Final = 8_000
FRAME_MS: Final = 20
FRAME_BYTES: Final = SAMPLE_RATE * FRAME_MS // 1_000
ULAW: Final = "ulaw_8000"

_BIAS: Final = 132
_CLIP: Final = 32_635

SoundKind = Literal["ulaw", "pcm16", "mp3", "other"]


@cache
def _codes() -> bytes:
    """The code of every 16-bit sample, by its two's complement read as an unsigned number.

    Source: ITU-T G.711. A segment is twice as wide as the one below it and has 16 equal steps, so
    that the table is made of 128 runs, shifted by the bias; a negative sample lacks the sign bit.
    """
    runs = (
        bytes((0xFF ^ (segment << 4 | step),)) * (8 << segment)
        for segment in range(8)
        for step in range(16)
    )
    loudest = 32_768
    # The lowest run begins below zero by what the bias takes of it.
    rising = b"".join(runs)[_BIAS - 128 :]
    rising += rising[-1:] * (loudest + 1 - len(rising))
    falling = rising.translate(bytes(code & 0x7F for code in range(256)))
    return rising[:loudest] + falling[:0:-1]


def pcm16_to_ulaw(pcm: bytes) -> bytes:
    """Encode 16-bit little-endian PCM, one byte per sample; an odd byte at the end is dropped."""
    return bytes(map(_codes().__getitem__, _samples("H", pcm)))


def is_mp3(start: bytes) -> bool:
    """Whether sound that begins like this is MP3: a tag, or the eleven set bits of a frame."""
    if start.startswith(b"ID3"):
        return True
    if len(start) < 2 or start[0] != 0xFF or start[1] < 0xE0:
        return False
    # Quiet PCM may begin with -1 as well; no frame has these values for bit rate and sampling rate.
    return len(start) == 2 or not (start[2] >> 4 == 0xF or start[2] >> 2 & 3 == 3)


def is_usable_format(output_format: str) -> bool:
    """Whether sound that was ordered in this format can be put on the line."""
    return output_format == ULAW or _thinning(output_format) is not None


class Framer:
    """Cuts sound that arrives in pieces of any size into frames of mu-law.

    `output_format` is what the sound was ordered in: mu-law passes through, PCM is encoded, that of
    a higher rate after taking the mean of as many samples as become one. There are no frames of
    anything else, nor of MP3 that comes whatever was ordered; `kind` says what it is once known.
    """

    def __init__(self, output_format: str) -> None:
        self.kind: SoundKind | None = "ulaw" if output_format == ULAW else None
        self._thinning = _thinning(output_format)
        self._raw = b""
        self._ulaw = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The whole frames that there are now."""
        if self.kind == "ulaw":
            self._ulaw += piece
        else:
            self._raw += piece
            if len(self._raw) >= len(b"ID3"):
                self._encode()
        return self._cut(len(self._ulaw) // FRAME_BYTES * FRAME_BYTES)

    def end(self) -> list[bytes]:
        """What is left, the last frame as short as it is."""
        self._encode()
        return self._cut(len(self._ulaw))

    def _encode(self) -> None:
        if self.kind is None:
            other: SoundKind = "other" if self._thinning is None else "pcm16"
            self.kind = "mp3" if is_mp3(self._raw) else other
        if self.kind == "pcm16" and self._thinning is not None:
            whole = len(self._raw) - len(self._raw) % (2 * self._thinning)
            self._ulaw += pcm16_to_ulaw(_thinned(self._raw[:whole], self._thinning))
            self._raw = self._raw[whole:]
        else:
            self._raw = b""

    def _cut(self, size: int) -> list[bytes]:
        sound = bytes(self._ulaw[:size])
        del self._ulaw[:size]
        return [sound[at : at + FRAME_BYTES] for at in range(0, len(sound), FRAME_BYTES)]


def _thinning(output_format: str) -> int | None:
    """How many samples of PCM in this format become one; None for what cannot be used."""
    rate = output_format.removeprefix("pcm_")
    if rate == output_format or not (rate.isascii() and rate.isdigit()):
        return None
    times, rest = divmod(int(rate), SAMPLE_RATE)
    return times if times and not rest else None


def _thinned(pcm: bytes, times: int) -> bytes:
    if times == 1:
        return pcm
    samples = _samples("h", pcm)
    means = (sum(samples[at : at + times]) // times for at in range(0, len(samples), times))
    return struct.pack(f"<{len(samples) // times}h", *means)


def _samples(kind: Literal["h", "H"], pcm: bytes) -> array[int]:
    samples = array(kind)
    samples.frombytes(pcm[: len(pcm) & ~1])
    if sys.byteorder == "big":
        samples.byteswap()
    return samples
