"""The bars of the issues: for each, the benchmark and the figure that it applies to, and its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Comparison = Literal["at most", "under", "at least", "exactly"]

TEN_MILLION = 10_000_000


@dataclass(frozen=True)
class Bar:
    """A limit that an issue sets for a figure."""

    bench: str
    figure: str
    issue: int
    comparison: Comparison
    bound: float
    what: str
    """The description of the figure in the issue."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """Minimum sizes. Below them the bar does not apply, because less data measures something else."""

    def keeps(self, value: float) -> bool:
        """Whether a figure meets the bar. NaN never does."""
        if self.comparison == "at most":
            return value <= self.bound
        if self.comparison == "under":
            return value < self.bound
        if self.comparison == "at least":
            return value >= self.bound
        return value == self.bound

    def asks(self, sizes: Mapping[str, int]) -> bool:
        """Whether it applies to a run of these sizes."""
        return all(sizes.get(name, 0) >= least for name, least in self.needs.items())

    @property
    def text(self) -> str:
        """The limit as text: "at most 1.2", and "1/50" instead of 0.02."""
        inverse = 1 / self.bound if self.bound else 0.0
        is_share = 0 < self.bound <= 0.2 and abs(inverse - round(inverse)) < 1e-9
        return f"{self.comparison} {f'1/{round(inverse)}' if is_share else f'{self.bound:g}'}"


def _all() -> Iterator[Bar]:
    yield from _ledger()
    yield from _keyed()
    yield from _columns()
    yield from _transforms()
    yield from _views()
    yield from _timeline()
    yield from _pipelines()
    yield from _scale()


def _ledger() -> Iterator[Bar]:
    yield Bar("ledger_write", "files", 2, "at most", 1.2, "Parquet files into a ledger ÷ Spark's copy of them")
    yield Bar("ledger_write", "frame", 2, "at most", 1.8, "a computed frame into a ledger ÷ Spark's write of it")
    yield Bar("ledger_read", "scan", 2, "at most", 1.2, "sum over all columns by read() ÷ plain Spark")
    yield Bar("ledger_read", "newest", 2, "at most", 1.5, "the last 1,000 changes of 10M ÷ of 100k")
    yield Bar("next_transaction", "time", 2, "at most", 1.5, "preparing a commit on 100,000 blocks ÷ on 10")
    for chain in ("long", "short"):
        yield Bar("next_transaction", f"reads.{chain}", 2, "at most", 4, f"objects read for it, {chain} chain")
    yield Bar("next_transaction", "reads.opening", 2, "at most", 12, "objects read to open and list both: no walk")
    yield Bar("session_start", "first_result", 2, "at most", 0.7, "shell to first result ÷ default PySpark")


def _keyed() -> Iterator[Bar]:
    yield Bar("upsert_small", "growth", 3, "at most", 2.0, "1,000 changed rows among 10M keys ÷ among 100k")
    yield Bar("upsert_small", "index_bytes", 3, "at most", 1.0, "index bytes: their growth ÷ that of log n")
    yield Bar("upsert_small", "delta.time", 3, "at most", 1 / 5, "upsert ÷ deltalake's merge, time")
    yield Bar("upsert_small", "delta.bytes", 3, "at most", 1 / 50, "upsert ÷ deltalake's merge, bytes written")
    for source in ("files", "frame"):
        what = f"first load of {source} ÷ Spark repartition, sort and write"
        yield Bar("upsert_load", source, 3, "at most", 1.3, what)
        yield Bar("upsert_load", f"memory.{source}", 3, "under", 4.0, f"peak memory of a load of {source}, GB")
    for percent, bound in ((0, 1.2), (1, 1.4), (9, 1.8)):
        yield Bar(
            "read_current", f"lying.{percent}", 3, "at most", bound, f"{percent} % dead ÷ plain scan of the live rows"
        )
        yield Bar("read_current", f"folded.{percent}", 3, "at most", 1.2, f"{percent} % dead, after fold() ÷ the same")
    for way in ("arrow", "spark"):
        what = f"10,000 slices of 100 rows after fold() ÷ one file, {way.capitalize()}"
        yield Bar("read_current", f"slices.{way}", 3, "at most", 1.3, what)


def _columns() -> Iterator[Bar]:
    yield Bar("backfill", "full", 4, "at most", 0.7, "backfill of 10M rows ÷ mapInArrow and write")
    yield Bar(
        "backfill", "nothing", 4, "at most", 0.4, "backfill with nothing to do, no JVM: seconds beyond the import"
    )
    yield Bar("backfill", "more", 4, "at most", 1 / 20, "backfill of 1 % new rows ÷ of all")
    yield Bar("backfill", "lance", 4, "at most", 0.5, "backfill ÷ lance's add_columns with a checkpoint file")
    for way in ("to_arrow", "to_batches", "read"):
        yield Bar("backfill", f"reading.{way}", 4, "at most", 1.4, f"{way}() with a computed column ÷ one plain file")
    for way in ("processes", "adaptive", "spark"):
        for percent in (25, 50, 75):
            what = f"killed at {percent} %, {way}: rows computed again ÷ one checkpoint per core"
            yield Bar("resume", f"{way}.{percent}", 4, "at most", 1.0, what)
    for change in ("slower", "faster"):
        what = f"100 × {change} midway: worst duration against the target from the third checkpoint on"
        yield Bar("sizing", change, 4, "at most", 3.0, what)


def _transforms() -> Iterator[Bar]:
    large = {"rows": TEN_MILLION}
    yield Bar("incremental", "growth", 19, "at most", 1.4, "1,000 changed keys of 10M ÷ of 100k, v2")
    yield Bar("incremental", "middle", 5, "at most", 1.8, "1,000 changed keys of 1M ÷ of 100k, v2")
    yield Bar("incremental", "v1", 5, "at least", 10, "changelist v1 ÷ v2 at 10M keys", large)
    yield Bar("incremental", "nothing", 5, "at most", 0.4, "nothing to do, no JVM: seconds beyond importing")
    yield Bar("full_run", "tenth", 5, "at most", 1.0, "full run of 1M rows ÷ mapInPandas and write")
    yield Bar("full_run", "whole", 5, "at most", 1.0, "full run of 10M rows ÷ mapInPandas and write")
    yield Bar("aggregation", "changed", 5, "at most", 1 / 10, "1,000 changed rows of 10M ÷ all groups again")


def _views() -> Iterator[Bar]:
    large = {"rows": TEN_MILLION}
    yield Bar("view_refresh", "rows", 6, "at most", 1 / 50, "row-wise view, 1,000 of 10M rows ÷ first refresh", large)
    yield Bar("view_refresh", "groups", 6, "at most", 1 / 5, "grouped view, 1,000 of 10M rows ÷ Spark SQL", large)
    yield Bar("view_refresh", "nothing", 6, "at most", 0.4, "nothing to do, no JVM: seconds beyond importing")
    one, ten = {"orders": 1_500_000}, {"orders": 15_000_000}
    yield Bar("tpch_refresh", "parts", 22, "at least", 20, "queries of TPC-H that are refreshed in parts")
    yield Bar("tpch_refresh", "first", 22, "at most", 1.5, "first refresh ÷ Spark over all rows and writing it", one)
    yield Bar("tpch_refresh", "mean.one", 22, "at most", 1 / 4, "TPC-H, 0.1 % of the orders ÷ all rows, scale 1", one)
    yield Bar("tpch_refresh", "worst.one", 22, "at most", 1.1, "the slowest of these, scale 1", one)
    yield Bar("tpch_refresh", "mean.ten", 22, "at most", 1 / 20, "TPC-H, 0.1 % of the orders ÷ all rows, scale 10", ten)
    yield Bar("tpch_refresh", "worst.ten", 22, "at most", 1 / 2, "the slowest of these, scale 10", ten)
    yield Bar("view_shapes", "parts", 22, "at least", 16, "everyday shapes that are refreshed in parts")
    slowest = "the slowest of them: refresh ÷ the larger of 1/15 of Spark and 200 ms"
    yield Bar("view_shapes", "worst", 22, "at most", 1, slowest, {"rows": TEN_MILLION})


def _timeline() -> Iterator[Bar]:
    for shape, where in (("anywhere", "all over a row group"), ("clustered", "in 1 % of a row group")):
        late, read = "late_narrow", "timeline_read"
        yield Bar(late, f"{shape}.bytes", 7, "at most", 20, f"late rows {where}: bytes written ÷ the rows alone")
        yield Bar(late, f"{shape}.time", 7, "at most", 1.2, f"{where}: time at commit 2,000 ÷ at commit 100")
        yield Bar(late, f"{shape}.largest", 7, "at most", 1.5, f"{where}: largest row group ÷ row_group_size")
        yield Bar(read, f"{shape}.waiting", 7, "at most", 1.6, f"{where}: whole timeline, merges waiting ÷ in order")
        yield Bar(read, f"{shape}.hour_groups", 7, "at most", 1.0, f"{where}: row groups read for an hour ÷ its own")
        yield Bar(read, f"{shape}.folded", 7, "at most", 1.1, f"{where}: whole timeline after fold() ÷ in order")
        yield Bar(read, f"{shape}.small", 7, "at most", 1, f"{where}: row groups below a quarter after fold()")
        yield Bar(read, f"{shape}.largest", 7, "at most", 1.5, f"{where}: largest row group ÷ row_group_size")
    yield Bar("late_narrow", "delta.bytes", 7, "at most", 1 / 20, "a commit ÷ deltalake's append and rewrite, bytes")
    yield Bar("late_spread", "bytes", 7, "at most", 1.2, "1,000 rows over 10 row groups: bytes ÷ those row groups")
    yield Bar("late_spread", "wrong", 7, "exactly", 0, "row groups rewritten that need not be, or the reverse")
    yield Bar("late_spread", "largest", 7, "at most", 1.5, "largest row group ÷ row_group_size")


def _pipelines() -> Iterator[Bar]:
    twenty, many = {"steps": 20}, {"datasets": 50}
    yield Bar("pipeline_idle", "seconds", 8, "under", 1.0, "run of 20 steps with nothing to do, seconds", twenty)
    yield Bar("pipeline_idle", "processes", 8, "exactly", 0, "processes that it starts, including a JVM", twenty)
    yield Bar("status_many", "seconds", 8, "under", 1.0, "status of 50 datasets of 10,000 blocks, seconds", many)


def _scale() -> Iterator[Bar]:
    many, rows = {"datasets": 10_000}, {"rows": 5_000_000}
    yield Bar("many_datasets", "list.seconds", 21, "under", 3.0, "list of 10,000 datasets, seconds", many)
    for command in ("list", "status", "doctor", "gc", "verify"):
        what = f"{command}: CPU a dataset of 10,000 ÷ of 1,000"
        yield Bar("many_datasets", f"{command}.linear", 21, "at most", 1.5, what, many)
    for action in ("append", "upsert"):
        what = f"{action} of 5,000 columns ÷ of 50, per cell"
        yield Bar("wide", action, 21, "at most", 2.0, what, {"columns": 5_000})
    for action in ("append", "stream", "load", "upsert", "backfill", "refresh_rows", "refresh_groups"):
        yield Bar("memory", f"{action}.peak", 21, "at most", 1.0, f"{action} of 5M rows: peak memory, GB", rows)
        what = f"{action}: peak memory of 50M rows ÷ of 5M"
        yield Bar("memory", f"{action}.flat", 21, "at most", 1.25, what, {**rows, "times": 10})


BARS: tuple[Bar, ...] = tuple(_all())


def bars_of(bench: str) -> dict[str, Bar]:
    """The bars of a benchmark by the key of their figure."""
    return {bar.figure: bar for bar in BARS if bar.bench == bench}
