"""The log file beside stderr: one JSON object a line, rotated by size."""

from __future__ import annotations

import gzip
import logging
import logging.handlers
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from lemon_core.logs import LEVELS, ROOT, StructlogFormatter, settle_level

MAX_BYTES: Final = 10 * 1024 * 1024
MAX_FILES: Final = 5


@dataclass(frozen=True, slots=True)
class LogFile:
    """Where to log and how much to keep: `max_files` old files beside the current one."""

    path: Path
    level: str = "info"
    max_bytes: int = MAX_BYTES
    max_files: int = MAX_FILES
    compress: bool = False


class _PrivateRotating(logging.handlers.RotatingFileHandler):
    """Log lines tell what a person does: the file is for its owner alone."""

    def _open(self) -> TextIOWrapper:
        # Not `self.mode`: to the type checker that is any text, and so is what comes out.
        return open(self.baseFilename, "a", encoding=self.encoding, opener=_private)


@contextmanager
def log_file(settings: LogFile) -> Iterator[str | None]:
    """Lemon's log lines go to the file too, within the block.

    Yields None, or the reason in one line when the file cannot be opened; logging goes on without.
    """
    try:
        handler = _handler(settings)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        yield f"{settings.path}: no log file ({reason}): correct logging.file or its folder"
        return
    root = logging.getLogger(ROOT)
    root.addHandler(handler)
    settle_level()
    try:
        yield None
    finally:
        root.removeHandler(handler)
        handler.close()
        settle_level()


def _handler(settings: LogFile) -> logging.Handler:
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    handler = _PrivateRotating(
        settings.path,
        maxBytes=settings.max_bytes,
        backupCount=settings.max_files,
        encoding="utf-8",
    )
    if settings.compress:
        handler.namer = _compressed_name
        handler.rotator = _compress
    handler.setFormatter(StructlogFormatter("json", colors=False))
    handler.setLevel(LEVELS.get(settings.level, logging.INFO))
    return handler


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _compressed_name(name: str) -> str:
    return f"{name}.gz"


def _compress(source: str, target: str) -> None:
    with (
        open(source, "rb") as plain,
        open(target, "wb", opener=_private) as packed,
        gzip.GzipFile(fileobj=packed, mode="wb") as out,
    ):
        shutil.copyfileobj(plain, out)
    os.unlink(source)
