"""What recorded outcomes say of models: rates, confidence, and the best one of a context.

A key is `family|toolset|workspace|provider|model`, with `-` for what is not known; its first three
parts are the context that a choice is made in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

NONE: Final = "-"
SUCCESS: Final = "success"
LOW_BELOW: Final = 0.5
MEDIUM_BELOW: Final = 0.8

Confidence = Literal["insufficient", "low", "medium", "high"]


class Counted(NamedTuple):
    """Outcomes of one kind under one key; `duration_ms` is the sum over `timed_count` of them."""

    fingerprint_key: str
    outcome: str
    run_count: int
    timed_count: int
    duration_ms: int


class KeyParts(NamedTuple):
    """A key, taken apart."""

    family: str
    toolset: str
    workspace: str
    provider: str
    model: str

    @property
    def context(self) -> str:
        """The context that the key belongs to."""
        return "|".join((self.family, self.toolset, self.workspace))


@dataclass(frozen=True, slots=True)
class Aggregate:
    """All outcomes of one key, or of one model of a context.

    `success_rate` has four decimals; with fewer than `min_sample_size` outcomes it is None, for it
    would say nothing.
    """

    key: str
    total: int
    outcomes: Mapping[str, int]
    success_rate: float | None
    mean_duration_ms: int | None
    confidence: Confidence


def parse_key(key: str) -> KeyParts | None:
    """The parts of `key`; None for what is not one. A workspace may have a bar in its path."""
    left, found, rest = key.partition("|")
    toolset, found_too, rest = rest.partition("|")
    parts = rest.rsplit("|", 2)
    if not (found and found_too) or len(parts) != 3:
        return None
    made = KeyParts(left, toolset, *parts)
    return made if all(made) else None


def aggregate(key: str, rows: Iterable[Counted], *, min_sample_size: int) -> Aggregate:
    """What `rows` say together, under the name `key`."""
    outcomes: dict[str, int] = {}
    timed = spent = 0
    for row in rows:
        outcomes[row.outcome] = outcomes.get(row.outcome, 0) + row.run_count
        timed += row.timed_count
        spent += row.duration_ms
    total = sum(outcomes.values())
    rate = None
    if total >= min_sample_size:
        rate = round(outcomes.get(SUCCESS, 0) / total, 4)
    return Aggregate(
        key=key,
        total=total,
        outcomes=dict(sorted(outcomes.items())),
        success_rate=rate,
        mean_duration_ms=round(spent / timed) if timed else None,
        confidence=_confidence(rate),
    )


def by_key(rows: Iterable[Counted], *, min_sample_size: int) -> list[Aggregate]:
    """One aggregate for each key, the one with most outcomes first."""
    groups: dict[str, list[Counted]] = {}
    for row in rows:
        groups.setdefault(row.fingerprint_key, []).append(row)
    found = [aggregate(k, group, min_sample_size=min_sample_size) for k, group in groups.items()]
    return sorted(found, key=lambda a: (-a.total, a.key))


def by_model(context: str, rows: Iterable[Counted], *, min_sample_size: int) -> list[Aggregate]:
    """One aggregate for each known model of `context`, over all its providers; the best first.

    Models with too few outcomes come last.
    """
    groups: dict[str, list[Counted]] = {}
    for row in rows:
        parts = parse_key(row.fingerprint_key)
        if parts is not None and parts.context == context and parts.model != NONE:
            groups.setdefault(parts.model, []).append(row)
    found = [aggregate(m, group, min_sample_size=min_sample_size) for m, group in groups.items()]
    return sorted(found, key=lambda a: (-(a.success_rate or -1.0), -a.total, a.key))


def best_model(models: Sequence[Aggregate]) -> str | None:
    """The first of `by_model` that enough is known of, and that ever succeeded."""
    return next((model.key for model in models if model.success_rate), None)


def _confidence(rate: float | None) -> Confidence:
    if rate is None:
        return "insufficient"
    if rate < LOW_BELOW:
        return "low"
    return "medium" if rate < MEDIUM_BELOW else "high"
