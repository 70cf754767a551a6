"""How a finished run is stored: its summary as a plain map, cut down when it is too large."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from lemon_core.store.codec import Codec

MAX_SUMMARY_BYTES = 1_048_576
"""A summary that encodes to more than this is stored compact."""

COMPACT_ANSWER_BYTES = 16_000
COMPACT_TEXT_BYTES = 8_000
TRUNCATED = "...[truncated]"

_ESSENTIAL = (
    "session_key",
    "run_id",
    "agent_id",
    "origin",
    "cwd",
    "model",
    "provider",
    "duration_ms",
    "engine",
    "outcome",
)


def plain_summary(summary: Mapping[str, object]) -> dict[str, object]:
    """`summary` with models (such as its completion) as plain maps, in memory as on disk."""
    return {
        key: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        for key, value in summary.items()
    }


def encode_summary(codec: Codec, summary: Mapping[str, object]) -> bytes:
    """The stored form of a plain summary, compact when the full one is too large."""
    data = codec.encode(summary)
    if len(data) <= MAX_SUMMARY_BYTES:
        return data
    data = codec.encode(compact_summary(summary))
    if len(data) <= MAX_SUMMARY_BYTES:
        return data
    kept = {key: summary[key] for key in _ESSENTIAL if key in summary}
    return codec.encode(compact_summary({**kept, "completed": _outcome_only(summary)}))


def compact_summary(summary: Mapping[str, object]) -> dict[str, object]:
    """`summary` without events, with the answer, the prompt and the error cut to fixed sizes."""
    compact = {key: value for key, value in summary.items() if key != "events"}
    if "prompt" in compact:
        compact["prompt"] = _cut(compact["prompt"], COMPACT_TEXT_BYTES)
    completed = compact.get("completed")
    if isinstance(completed, Mapping):
        compact["completed"] = {
            **completed,
            "answer": _cut(completed.get("answer"), COMPACT_ANSWER_BYTES),
            "error": _cut(completed.get("error"), COMPACT_TEXT_BYTES),
        }
    return compact


def _outcome_only(summary: Mapping[str, object]) -> dict[str, object]:
    completed = summary.get("completed")
    facts = completed if isinstance(completed, Mapping) else {}
    return {key: facts.get(key) for key in ("ok", "answer", "error", "engine")}


def _cut(value: object, max_bytes: int) -> object:
    """Text cut on a character boundary; maps have each text cut, everything else stays."""
    if isinstance(value, Mapping):
        return {key: _cut(item, max_bytes) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    raw = value.encode(errors="replace")
    if len(raw) <= max_bytes:
        return value
    return raw[:max_bytes].decode(errors="ignore") + TRUNCATED
