"""`lemon introspection`: what was recorded about runs, newest first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lemon_core.cli.base import command_app, command_context, open_core, print_json
from lemon_core.commands import CommandContext

if TYPE_CHECKING:
    from lemon_core.introspection import IntrospectionRecord

app = command_app("Show recorded events of runs.")

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PAYLOAD_WIDTH: Final = 160


@app.command()
def introspection(
    ctx: typer.Context,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Of this run only.")] = None,
    session_key: Annotated[
        str | None, typer.Option("--session-key", help="Of this session only.")
    ] = None,
    event_type: Annotated[
        list[str] | None, typer.Option("--event-type", help="Of this type only; repeatable.")
    ] = None,
    agent_id: Annotated[str | None, typer.Option("--agent-id", help="Of this agent only.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Not older: 30m, 1h, 2d, or an ISO time.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Show what was recorded about runs in the last seven days, newest first.

    Records hold no secrets, prompts or tool output. `[introspection] enabled = false` stops them.
    """
    import anyio

    from lemon_core.clock import SystemClock

    since_ms = None if since is None else since_time(since, SystemClock().now_ms())
    query = Query(run_id, session_key, agent_id, event_type or None, since_ms, limit)
    found, enabled = anyio.run(_ask, command_context(ctx), query)
    if as_json:
        print_json({"count": len(found), "events": [asdict(record) for record in found]})
    elif found:
        print("\n".join(_line(record) for record in found))
    else:
        print("No records fit." if enabled else "No records fit; recording is switched off.")
    return 0


@dataclass(frozen=True, slots=True)
class Query:
    """Which records are wanted."""

    run_id: str | None
    session_key: str | None
    agent_id: str | None
    event_type: Sequence[str] | None
    since_ms: int | None
    limit: int


async def _ask(context: CommandContext, query: Query) -> tuple[list[IntrospectionRecord], bool]:
    """The records, and whether new ones are made."""
    from lemon_core.introspection import Introspection

    async with open_core(context) as core:
        found = await Introspection(core.store, core.clock).query(
            run_id=query.run_id,
            session_key=query.session_key,
            agent_id=query.agent_id,
            event_type=query.event_type,
            since_ms=query.since_ms,
            limit=query.limit,
        )
        return found, core.loaded.config.introspection.enabled


def since_time(text: str, now_ms: int) -> int:
    """The time that `text` means: an age such as `30m`, `1h`, `2d`, or an ISO date or time.

    A time without a zone is that of this machine. Raises `typer.BadParameter`.
    """
    number, unit = text[:-1].strip(), text[-1:].lower()
    if number.isascii() and number.isdecimal() and unit in _UNITS_MS:
        return max(0, now_ms - int(number) * _UNITS_MS[unit])
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no time: write 30m, 1h, 2d or 2026-01-31T12:00", param_hint="--since"
        ) from None


def _line(record: IntrospectionRecord) -> str:
    time = datetime.fromtimestamp(record.ts_ms / 1000, UTC).isoformat(timespec="milliseconds")
    parts = [f"{time.removesuffix('+00:00')}Z  {record.event_type:<28}"]
    parts.append(record.run_id or record.session_key or "-")
    if record.payload:
        # One line whatever the payload holds.
        text = json.dumps(record.payload, ensure_ascii=False, separators=(",", ":"))
        parts.append(text if len(text) <= _PAYLOAD_WIDTH else f"{text[: _PAYLOAD_WIDTH - 1]}…")
    return "  ".join(parts)
