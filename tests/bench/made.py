"""Results of benchmarks, made up."""

from __future__ import annotations

from summary.bars import BARS
from summary.figures import Curve, Figure, Line, Measured
from summary.running import Record


def measured(bench: str, **values: float) -> Measured:
    """A run at sizes that every bar is for; where a key has a dot, the argument has two underscores."""
    sizes = {name: least for bar in BARS if bar.bench == bench for name, least in bar.needs.items()}
    figures = tuple(Figure(key.replace("__", "."), key, value, "as made up") for key, value in values.items())
    return Measured(bench, sizes, figures, (curve(bench),))


def curve(key: str) -> Curve:
    line, other = Line("ours", ((100.0, 1.5), (10_000.0, 2.0))), Line("theirs", ((10_000.0, 40.0),))
    return Curve(key, "A curve of < and &", "rows", "seconds", (line, other), "log", "log")


def record(bench: str, **values: float) -> Record:
    return of(measured(bench, **values))


def of(found: Measured) -> Record:
    return Record(found.bench, "quick", "ran", found, "", "2026-11-16T20:00:00+00:00", 3.0, (0.5, 0.4, 0.3), "2 cores")


def broken(bench: str, state: str = "failed") -> Record:
    why = "ended with 1: ValueError"
    return Record(bench, "quick", state, None, why, "2026-11-16T20:00:00+00:00", 3.0, (0.5, 0.4, 0.3), "2 cores")
