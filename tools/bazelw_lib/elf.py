"""Just enough of the ELF format to tell programs from libraries."""

import struct
from enum import Enum
from pathlib import Path

_PT_INTERP = 3


class ElfKind(Enum):
    """What a file is, for the purpose of running it with another C library."""

    NOT_ELF = "not_elf"
    PROGRAM = "program"
    """Names a dynamic loader."""
    LIBRARY = "library"
    """Is loaded by others, or is linked statically."""


def elf_kind(file: Path) -> ElfKind:
    """Classify a file by its program headers; 64-bit little-endian only, as Debian's Bazel is."""
    with file.open("rb") as stream:
        header = stream.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return ElfKind.NOT_ELF
        (table_offset,) = struct.unpack_from("<Q", header, 32)
        entry_size, entry_count = struct.unpack_from("<HH", header, 54)
        stream.seek(table_offset)
        table = stream.read(entry_size * entry_count)
    kinds = (struct.unpack_from("<I", table, i)[0] for i in range(0, len(table), entry_size))
    return ElfKind.PROGRAM if _PT_INTERP in kinds else ElfKind.LIBRARY
