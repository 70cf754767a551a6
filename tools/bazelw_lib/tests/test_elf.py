"""Programs, libraries and other files are told apart."""

import struct
from pathlib import Path

import pytest

from tools.bazelw_lib.elf import ElfKind, elf_kind

PT_LOAD, PT_INTERP = 1, 3


def elf_file(path: Path, segments: list[int]) -> Path:
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, len(segments))
    table = b"".join(struct.pack("<I", kind) + bytes(52) for kind in segments)
    path.write_bytes(bytes(header) + table)
    return path


@pytest.mark.parametrize(
    ("segments", "kind"),
    [
        ([PT_LOAD, PT_INTERP], ElfKind.PROGRAM),
        ([PT_LOAD, PT_LOAD], ElfKind.LIBRARY),
        ([], ElfKind.LIBRARY),
    ],
)
def test_what_names_a_loader_is_a_program(
    tmp_path: Path, segments: list[int], kind: ElfKind
) -> None:
    assert elf_kind(elf_file(tmp_path / "file", segments)) is kind


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" + b"x" * 100])
def test_other_files_are_no_elf(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert elf_kind(file) is ElfKind.NOT_ELF
