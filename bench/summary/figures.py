"""The results of a benchmark: figures, each with a key that does not depend on sizes, and growth curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Figure:
    """One measured number, usually a ratio of two values of the same run. Its key selects the bar."""

    key: str
    name: str
    value: float
    detail: str


@dataclass(frozen=True)
class Line:
    """One line of a curve: its points from left to right."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A chart of how one quantity grows with another."""

    key: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"


@dataclass(frozen=True)
class Measured:
    """The results of one run of a benchmark, and its sizes."""

    bench: str
    sizes: Mapping[str, int]
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()

    def figure(self, key: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.key == key), None)

    def document(self) -> dict[str, Any]:
        """The results as a JSON document."""
        return asdict(self)

    @staticmethod
    def of(document: Mapping[str, Any]) -> Measured:
        """The results from a JSON document; the inverse of `document`."""
        return Measured(
            document["bench"],
            document["sizes"],
            tuple(Figure(**figure) for figure in document["figures"]),
            tuple(_curve(curve) for curve in document["curves"]),
        )


@dataclass
class Growth:
    """Collects the points of several lines, and makes a curve of them."""

    key: str
    title: str
    x: str
    y: str
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, line: str, x: float, y: float) -> None:
        self.lines.setdefault(line, []).append((x, y))

    def curve(self) -> Curve:
        lines = tuple(Line(name, tuple(sorted(points))) for name, points in self.lines.items())
        return Curve(self.key, self.title, self.x, self.y, lines, self.x_scale, self.y_scale)


def binned(values: Sequence[float], bins: int = 40) -> list[tuple[float, float]]:
    """A long series as medians of `bins` consecutive parts, each at the number of its last value."""
    from statistics import median

    count = min(bins, len(values))
    ends = [len(values) * (i + 1) // count for i in range(count)]
    return [(float(end), median(values[start:end])) for start, end in zip([0, *ends], ends, strict=False)]


def _curve(document: Mapping[str, Any]) -> Curve:
    lines = tuple(Line(line["name"], tuple((x, y) for x, y in line["points"])) for line in document["lines"])
    return Curve(**{**document, "lines": lines})
