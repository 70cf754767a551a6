"""Numbers in the text format that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; `suffix` goes behind the name of its metric."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """Samples under one name. Names of counters end in `_total`, units are base units."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[Sample]


class Histogram:
    """How often values were at most each of `bounds` (rising), their number and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def metric(self, name: str, help_text: str) -> Metric:
        """The histogram as it is now."""
        edges = [*(_number(bound) for bound in self._bounds), "+Inf"]
        counts = list(accumulate(self._counts))
        samples = [
            Sample(count, {"le": edge}, "_bucket")
            for edge, count in zip(edges, counts, strict=True)
        ]
        samples += [Sample(self._sum, suffix="_sum"), Sample(counts[-1], suffix="_count")]
        return Metric(name, "histogram", help_text, samples)


def exposition(metrics: Iterable[Metric]) -> str:
    """All metrics as one page of text."""
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {metric.name} {help_text}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in metric.samples:
        yield f"{metric.name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
