"""The text that Prometheus reads."""

from __future__ import annotations

from lemon_core.http.metrics import Histogram, Metric, Sample, exposition


def test_metrics_are_written_in_the_text_format() -> None:
    runs = Metric(
        "runs_total",
        "counter",
        "Runs, by\noutcome \\ end.",
        [Sample(3, {"outcome": "ok"}), Sample(0.5, {"outcome": 'a "b"\n\\', "x": "y"})],
    )
    assert exposition([runs, Metric("load", "gauge", "Now.", [Sample(2)])]) == (
        "# HELP runs_total Runs, by\\noutcome \\\\ end.\n"
        "# TYPE runs_total counter\n"
        'runs_total{outcome="ok"} 3\n'
        'runs_total{outcome="a \\"b\\"\\n\\\\",x="y"} 0.5\n'
        "# HELP load Now.\n"
        "# TYPE load gauge\n"
        "load 2\n"
    )


def test_a_histogram_counts_up_to_each_bound() -> None:
    latency = Histogram((0.1, 1, 2.5))
    for value in (0.05, 0.1, 0.5, 2.5, 9):
        latency.observe(value)
    lines = exposition([latency.metric("wait_seconds", "Wait.")]).splitlines()[2:]
    assert lines == [
        'wait_seconds_bucket{le="0.1"} 2',
        'wait_seconds_bucket{le="1"} 3',
        'wait_seconds_bucket{le="2.5"} 4',
        'wait_seconds_bucket{le="+Inf"} 5',
        "wait_seconds_sum 12.15",
        "wait_seconds_count 5",
    ]
