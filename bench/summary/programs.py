"""The benchmarks in the order in which they run, with quick sizes and full sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent.parent
ROWS = {"rows": 10_000_000}


@dataclass(frozen=True)
class Program:
    """A benchmark with its sizes. For sizes that are missing here, its own defaults apply."""

    name: str
    quick: Mapping[str, int] = field(default_factory=dict)
    full: Mapping[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    def flags(self, sizes: Mapping[str, int]) -> list[str]:
        """The sizes as command-line flags."""
        return [word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", str(size))]


_LATE = {"rows": 10_000_000, "row_group_size": 100_000, "late": 1_000, "commits": 2_000}
_LATE_QUICK = {"rows": 1_000_000, "row_group_size": 50_000, "commits": 200}  # a fifth is late, as in the full size

PROGRAMS: tuple[Program, ...] = (
    Program("session_start", {"repeats": 2}, {"repeats": 5}),
    Program("ledger_write", {"rows": 500_000, "repeats": 2}, ROWS),
    Program("ledger_read", {"rows": 500_000, "slices": 300, "repeats": 3}, {**ROWS, "slices": 10_000}),
    Program("next_transaction", {"blocks": 5_000, "repeats": 101}, {"blocks": 100_000}),
    Program(
        "upsert_small",
        {"keys": 1_000_000, "changed": 100, "upserts": 16, "repeats": 2},
        {"keys": 10_000_000, "changed": 1_000, "upserts": 128},
    ),
    Program("upsert_load", {"rows": 500_000, "repeats": 2}, ROWS),
    Program("read_current", {"rows": 500_000, "slices": 300, "repeats": 3}, {**ROWS, "slices": 10_000}),
    Program("backfill", {"rows": 500_000, "repeats": 2}, {**ROWS, "repeats": 5}),
    Program("resume", {"rows": 4_000, "checkpoint": 125}, {"rows": 40_000, "checkpoint": 500}),
    Program("sizing", {"target_ms": 200}, {"target_ms": 10_000}),
    Program("incremental", {"rows": 300_000, "repeats": 3}, ROWS),
    Program("full_run", {"rows": 500_000, "repeats": 2}, ROWS),
    Program("aggregation", {"rows": 1_000_000, "repeats": 2}, ROWS),
    Program("view_refresh", {"rows": 300_000, "repeats": 2}, ROWS),
    Program("tpch_refresh", {"orders": 15_000, "repeats": 1}, {"orders": 15_000_000}),
    Program("view_shapes", {"rows": 50_000, "repeats": 1}, ROWS),
    Program("late_narrow", {**_LATE_QUICK, "repeats": 2}, _LATE),
    Program(
        "late_spread", {"rows": 1_000_000, "row_group_size": 10_000, "repeats": 3}, {**ROWS, "row_group_size": 100_000}
    ),
    Program("timeline_read", {**_LATE_QUICK, "repeats": 5}, {**_LATE, "repeats": 7}),
    Program("pipeline_idle", {"steps": 20, "repeats": 5}, {"steps": 20, "repeats": 9}),
    Program(
        "status_many", {"datasets": 50, "blocks": 500, "repeats": 5}, {"datasets": 50, "blocks": 10_000, "repeats": 9}
    ),
    Program("many_datasets", {"datasets": 500, "repeats": 2}, {"datasets": 10_000, "repeats": 3}),
    Program("wide", {"columns": 500, "repeats": 2}, {"columns": 5_000, "repeats": 3}),
    Program("memory", {"rows": 500_000, "times": 2}, {"rows": 5_000_000, "times": 10}),
)
"""All benchmarks of this folder; a test checks that none is missing."""


def sizes_of(program: Program, scale: str) -> Mapping[str, int]:
    """The sizes of a benchmark at a scale."""
    return program.full if scale == "full" else program.quick
