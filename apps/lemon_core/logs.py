"""Log lines: an event name and fields, rendered by structlog to stderr.

`get_logger` and the level check cost nothing and import nothing: the standard library's logger tree
`lemon` carries the lines, so levels, handlers and capture work as everybody knows them. structlog,
whose import takes 100 ms and 5 MiB, is loaded when a line needs it: one with colours, with a
traceback, or as JSON. The plain ones of a server are written here, in the same form.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

ROOT = "lemon"
LogFormat = Literal["console", "json"]
# Text with one of these is shown with quotation marks.
_QUOTED = frozenset(" \t=\r\n\"'")
LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


@dataclass(frozen=True, slots=True)
class Logger:
    """Writes events of one module, with the fields that were bound to it."""

    name: str
    fields: Mapping[str, object] = field(default_factory=dict)

    def bind(self, **fields: object) -> Logger:
        """A logger that adds `fields` to each of its lines."""
        return Logger(self.name, {**self.fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        """Detail for whoever looks for a fault."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """A fact of normal operation."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something degraded that the operator may want to mend."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something failed."""
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Something failed with the exception that is being handled; the traceback comes along."""
        self._write(logging.ERROR, event, fields, traceback=True)

    def _write(
        self, level: int, event: str, fields: Mapping[str, object], *, traceback: bool = False
    ) -> None:
        target = logging.getLogger(self.name)
        if target.isEnabledFor(level):
            extra = {"lemon_fields": {**self.fields, **fields}}
            exc_info = sys.exc_info() if traceback else None
            # Not `log`, which looks for the caller's line: no line of ours shows it.
            target.handle(
                target.makeRecord(target.name, level, "", 0, event, (), exc_info, extra=extra)
            )


def get_logger(name: str) -> Logger:
    """The logger of a module, by its dotted name; it stands below `lemon` in the logger tree."""
    return Logger(f"{ROOT}.{name}")


class StructlogFormatter(logging.Formatter):
    """Renders records with structlog, as aligned text for people or as one JSON object per line."""

    def __init__(self, form: LogFormat, *, colors: bool) -> None:
        super().__init__()
        self._form, self._colors = form, colors
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        """One line, or several with a traceback."""
        if self._form == "console" and not (self._colors or record.exc_info or record.stack_info):
            return plain_line(record)
        return self.rendered(record)

    def rendered(self, record: logging.LogRecord) -> str:
        """The line as structlog renders it."""
        if self._formatter is None:
            self._formatter = self._build()
        return self._formatter.format(record)

    def _build(self) -> logging.Formatter:
        import structlog  # here, because most commands never write a line
        from structlog.typing import EventDict, Processor, WrappedLogger

        def add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
            record: logging.LogRecord = event["_record"]
            event["logger"] = record.name.removeprefix(f"{ROOT}.")
            event.update(getattr(record, "lemon_fields", {}))
            return event

        if self._form == "json":
            tail: list[Processor] = [
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ]
        else:
            # Plain tracebacks: the coloured ones print local variables, which may hold secrets.
            plain = structlog.dev.plain_traceback
            tail = [structlog.dev.ConsoleRenderer(colors=self._colors, exception_formatter=plain)]
        return structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                add_fields,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
        )


def plain_line(record: logging.LogRecord) -> str:
    """The line that structlog's console renderer gives without colours."""
    fields: Mapping[str, object] = getattr(record, "lemon_fields", {})
    when = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None).isoformat()
    name = record.name.removeprefix(f"{ROOT}.")
    head = f"{when}Z [{record.levelname.lower():<9}] {record.getMessage():<30} [{name}]"
    return " ".join((head, *(f"{key}={_shown(fields[key])}" for key in sorted(fields))))


def _shown(value: object) -> str:
    if isinstance(value, str) and _QUOTED.isdisjoint(value):
        return value
    return repr(value)


def configure(
    level: str = "warning", *, form: LogFormat = "console", stream: TextIO | None = None
) -> None:
    """Send Lemon's log lines of `level` and above to `stream` (default: stderr as it is now).

    The logger tree belongs to the process, so the last call wins; nothing else is touched, log
    files (`log_file`) neither. An unknown level means `warning`.
    """
    out = sys.stderr if stream is None else stream
    handler = _LineHandler(out)
    handler.setFormatter(StructlogFormatter(form, colors=out.isatty()))
    handler.setLevel(LEVELS.get(level.lower(), logging.WARNING))
    root = logging.getLogger(ROOT)
    for old in root.handlers[:]:
        if isinstance(old, _LineHandler):
            root.removeHandler(old)
    root.addHandler(handler)
    settle_level()


def settle_level() -> None:
    """Make the tree as talkative as its most talkative handler; the others leave lines out."""
    root = logging.getLogger(ROOT)
    levels = [h.level for h in root.handlers if isinstance(h.formatter, StructlogFormatter)]
    root.setLevel(min(levels, default=logging.WARNING))


class _LineHandler(logging.StreamHandler[TextIO]):
    """The one that `configure` sets; a log file's handler is not touched."""
