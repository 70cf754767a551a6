"""Text files as edits see them: what cannot be read without loss is refused, not rewritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lemon_agent import ToolError

BOM: Final = b"\xef\xbb\xbf"
_OTHER_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class TextFile:
    """The text of a file without its byte order mark; line ends are as they are in the file."""

    text: str
    bom: bytes = b""

    @classmethod
    def decode(cls, data: bytes, shown: str) -> TextFile:
        """The text of `data`; raises `ToolError` for what is not UTF-8 text."""
        bom = BOM if data.startswith(BOM) else b""
        # A file in UTF-16 without a mark is full of null characters, and valid UTF-8.
        if data.startswith(_OTHER_MARKS) or b"\0" in data:
            raise _unreadable(shown)
        try:
            return cls(data[len(bom) :].decode(), bom)
        except UnicodeDecodeError as exc:
            raise _unreadable(shown) from exc

    @property
    def all_crlf(self) -> bool:
        """Whether every line ends in CRLF (and there is one)."""
        return "\r\n" in self.text and self.text.count("\r\n") == self.text.count("\n")

    def encode(self, text: str) -> bytes:
        """`text` as the new content, under the same byte order mark."""
        return self.bom + text.encode()


def split_keeping_ends(text: str) -> list[str]:
    """The lines with their ends; only line feeds end one, as grep counts them."""
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def line_end(line: str) -> str:
    """How a line ends: CRLF, a line feed, or nothing."""
    if line.endswith("\r\n"):
        return "\r\n"
    return "\n" if line.endswith("\n") else ""


def without_end(line: str) -> str:
    """The line without its end."""
    return line.removesuffix("\n").removesuffix("\r")


def _unreadable(shown: str) -> ToolError:
    return ToolError(f"{shown} is not UTF-8 text: change it with bash")
