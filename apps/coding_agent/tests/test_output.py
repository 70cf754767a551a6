"""Memory stays bounded whatever a program prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coding_agent.tools import output
from coding_agent.tools.output import Head, SpillFile, Tail

pytestmark = pytest.mark.anyio


async def test_the_head_keeps_the_beginning() -> None:
    head = Head(4)
    for chunk in (b"ab", b"cd", b"ef"):
        await head.take(chunk)
    assert head.data == b"abcd"


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_the_tail_keeps_the_end_and_counts(chunks: list[bytes]) -> None:
    tail, whole = Tail(16), b"".join(chunks)
    for chunk in chunks:
        tail.take(chunk)
    assert whole.endswith(tail.last())
    assert len(tail.last()) >= min(len(whole), 16) - 3
    assert len(tail.last(4)) <= 4
    assert (tail.total_bytes, tail.line_feeds) == (len(whole), whole.count(b"\n"))


def test_the_tail_does_not_begin_inside_a_letter() -> None:
    tail = Tail(4)
    tail.take("xx€yz".encode())
    assert tail.last().decode() == "yz"
    assert tail.last(3) == b"yz"[-3:]


async def test_a_spill_file_holds_everything_up_to_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_SPILL_BYTES", 10)
    monkeypatch.setattr(output, "SPILL_BUFFER_BYTES", 4)
    spill = SpillFile(tmp_path / "spill" / "bash", "txt")
    await spill.write(b"abc")
    assert not (tmp_path / "spill").exists()
    for chunk in (b"defg", b"hijklm", b"no"):
        await spill.write(chunk)
    path = await spill.save()
    assert path is not None
    assert path.read_bytes() == b"abcdefghij"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_full_disk_costs_the_file_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "spill").touch()
    spill = SpillFile(tmp_path / "spill" / "bash", "txt")
    await spill.write(b"text")
    assert await spill.save() is None
    await spill.write(b"more")
    assert await spill.save() is None
