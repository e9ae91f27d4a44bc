"""The table of figures and bars: which bars are met, missed, or not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from summary.bars import BARS, Bar
from summary.figures import Figure
from summary.programs import PROGRAMS
from summary.running import Record

Verdict = Literal["met", "missed", "not measured", "shown only"]


@dataclass(frozen=True)
class Row:
    """One line of the table: a bar with its figure, or a figure that has no bar."""

    issue: int | None
    bench: str
    figure: str
    what: str
    bar: str
    value: float | None
    verdict: Verdict
    detail: str

    @property
    def shown(self) -> str:
        """The figure as text."""
        return "–" if self.value is None else shown(self.value)


def shown(value: float) -> str:
    """A figure with a few digits."""
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def rows(records: Sequence[Record]) -> list[Row]:
    """All bars in the order of the issues, then the figures without a bar."""
    by_bench = {record.bench: record for record in records}
    with_bars = [_row(bar, by_bench.get(bar.bench)) for bar in BARS]
    barred = {(bar.bench, bar.figure) for bar in BARS}
    only = [
        _shown_only(record.bench, figure)
        for record in _in_order(records)
        if record.measured is not None
        for figure in record.measured.figures
        if (record.bench, figure.key) not in barred
    ]
    return [*with_bars, *only]


def _row(bar: Bar, record: Record | None) -> Row:
    def row(value: float | None, verdict: Verdict, detail: str) -> Row:
        return Row(bar.issue, bar.bench, bar.figure, bar.what, bar.text, value, verdict, detail)

    if record is None:
        return row(None, "not measured", "it was not run")
    if record.measured is None:
        return row(None, "not measured", f"the benchmark {record.state}")
    figure = record.measured.figure(bar.figure)
    if figure is None:
        return row(None, "not measured", f"the benchmark has no figure {bar.figure!r}")
    detail = f"{figure.name}: {figure.detail}"
    if not bar.asks(record.measured.sizes):
        least = ", ".join(f"{size:,} {name}" for name, size in bar.needs.items())
        return row(figure.value, "not measured", f"the bar is for {least}; {detail}")
    return row(figure.value, "met" if bar.keeps(figure.value) else "missed", detail)


def _shown_only(bench: str, figure: Figure) -> Row:
    return Row(None, bench, figure.key, figure.name, "", figure.value, "shown only", figure.detail)


def _in_order(records: Sequence[Record]) -> list[Record]:
    order = {program.name: number for number, program in enumerate(PROGRAMS)}
    return sorted(records, key=lambda record: order.get(record.bench, len(order)))


def exit_code(records: Sequence[Record]) -> int:
    """0 if all benchmarks that ran meet their bars, 1 if a bar is missed, 2 if a benchmark has no result."""
    ran = {record.bench for record in records}
    of_these = [row for row in rows(records) if row.bench in ran]
    if any(row.value is None for row in of_these):  # it ended without a result, or has no figure for a bar
        return 2
    return 1 if any(row.verdict == "missed" for row in of_these) else 0


def document(records: Sequence[Record]) -> dict[str, Any]:
    """The table and the runs behind it, as a JSON document."""
    return {
        "table": [asdict(row) for row in rows(records)],
        "runs": [record.document() for record in _in_order(records)],
    }


def markdown(records: Sequence[Record], pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The table as Markdown; `pictures` are titles and paths."""
    found = rows(records)
    parts = [_head(records, found), _bars(found), _only(found), _runs(records), _pictures(pictures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(records: Sequence[Record], found: Sequence[Row]) -> str:
    if not records:
        return "No benchmark was run."
    scales = sorted({record.scale for record in records})
    machines = sorted({record.machine for record in records})
    days = sorted({record.began[:10] for record in records})
    counts = {verdict: sum(row.verdict == verdict for row in found) for verdict in ("met", "missed", "not measured")}
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [
        f"Measured {when}, {' and '.join(scales)} sizes, on {'; on '.join(machines)}.",
        f"{len(found)} figures: {', '.join(f'{count} bars {verdict}' for verdict, count in counts.items())}.",
    ]
    if "quick" in scales:
        lines.append("Quick sizes are far below those that the bars are for: they show that everything works.")
    broken = [f"`{record.bench}` {record.state}" for record in _in_order(records) if record.state != "ran"]
    if broken:
        lines.append(f"**Without a result: {', '.join(broken)}.**")
    missed = [f"`{row.bench}` {row.figure} {row.shown} ({row.bar})" for row in found if row.verdict == "missed"]
    if missed:
        lines.append(f"**Missed: {'; '.join(missed)}.**")
    return "\n".join(lines)


def _bars(found: Sequence[Row]) -> str:
    lines = ["| issue | benchmark | what | measured | bar | | |", "|---|---|---|--:|---|---|---|"]
    for row in found:
        if row.verdict != "shown only":
            verdict = f"**{row.verdict}**" if row.verdict != "met" else "met"
            cells = [str(row.issue), f"`{row.bench}`", row.what, row.shown, row.bar, verdict, row.detail]
            lines.append(_line(cells))
    return "\n".join(lines)


def _only(found: Sequence[Row]) -> str:
    lines = ["Without a bar:", "", "| benchmark | what | measured | |", "|---|---|--:|---|"]
    only = [_line([f"`{r.bench}`", r.what, r.shown, r.detail]) for r in found if r.verdict == "shown only"]
    return "\n".join([*lines, *only]) if only else ""


def _runs(records: Sequence[Record]) -> str:
    lines = [
        "The runs:",
        "",
        "| benchmark | sizes | began, UTC | seconds | load before | |",
        "|---|---|---|--:|--:|---|",
    ]
    for record in _in_order(records):
        sizes = {} if record.measured is None else record.measured.sizes
        size_text = ", ".join(f"{name} {size:,}" for name, size in sizes.items()) or "–"
        state = "" if record.state == "ran" else f"**{record.state}** {record.why}"
        began = record.began[:16].replace("T", " ")
        cells = [
            f"`{record.bench}`",
            f"{record.scale}: {size_text}",
            began,
            f"{record.seconds:,.0f}",
            f"{record.load[0]:.1f}",
            state,
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def _pictures(pictures: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(f"![{title}]({where})" for title, where in pictures)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
