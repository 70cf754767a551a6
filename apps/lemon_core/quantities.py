"""Durations, sizes and waiting times as people and services write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Final, TypeVar

D = TypeVar("D")

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_MS: Final[Mapping[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    "kb": 1024,
    "mb": 1024**2,
    "gb": 1024**3,
    "tb": 1024**4,
}
_RETRY_AFTER = re.compile(r"retry[ _-]after[ :=]*([0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)


def parse_duration(text: object, default: D) -> int | D:
    """Milliseconds of `30s`, `1.5 h`, `2d` or a bare number (ms); `default` for anything else."""
    return _parse(text, _MS, default)


def parse_bytes(text: object, default: D) -> int | D:
    """Bytes of `1.5 GB` (1024-based) or a bare number; `default` for anything else."""
    return _parse(text, _BYTES, default)


def parse_retry_after(body: str) -> int:
    """Milliseconds that a refusal asks to wait, else 0.

    It is JSON with `parameters.retry_after` in seconds, or text with "retry after N".
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    parameters = document.get("parameters") if isinstance(document, dict) else None
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        found = float(seconds)
    else:
        match = _RETRY_AFTER.search(body)
        found = float(match.group(1)) if match else 0.0
    return round(found * 1000) if math.isfinite(found) and found > 0 else 0


def _parse(text: object, units: Mapping[str, int], default: D) -> int | D:
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = str(text)
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    factor = None if match is None else units.get(match.group(2).lower())
    if match is None or factor is None:
        return default
    return round(float(match.group(1)) * factor)
