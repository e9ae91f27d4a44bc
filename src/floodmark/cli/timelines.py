"""What a write did to a timeline, in a line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from floodmark.cli import words

if TYPE_CHECKING:
    from floodmark.dataset import Dataset
    from floodmark.timeline.stored.root import Root


def root_of(dataset: Dataset) -> Root | None:
    """Where the timeline stands; None when the dataset keeps none."""
    from floodmark.timeline import settings

    return None if settings.of(dataset.snapshot().state) is None else dataset.timeline_root()


@dataclass(frozen=True)
class Brought:
    """What came into a timeline between two looks at it, and how many records are not in it yet."""

    rows: int
    late_rows: int
    bytes_in: int
    bytes_written: int
    behind: int

    @classmethod
    def between(cls, before: Root, after: Root, dataset: Dataset) -> Brought:
        records = 0 if dataset.last_offset is None else dataset.last_offset + 1
        behind = max(0, records - after.applied)
        last = after.last
        if last is None or after.version == before.version:
            return cls(0, 0, 0, 0, behind)
        if after.version == before.version + 1:
            return cls(last.rows, last.late_rows, last.bytes_in, last.bytes_written, behind)
        # Several steps, of which the root knows the last one and the sums; those begin anew with a timeline made anew.
        return cls(
            rows=max(last.rows, after.applied - before.applied),
            late_rows=last.late_rows,
            bytes_in=max(last.bytes_in, after.bytes_in - before.bytes_in),
            bytes_written=max(last.bytes_written, after.bytes_written - before.bytes_written),
            behind=behind,
        )

    @property
    def amplification(self) -> float | None:
        """Bytes written for each one that came in; None when nothing did."""
        return self.bytes_written / self.bytes_in if self.bytes_in > 0 else None

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "amplification": self.amplification}

    def line(self) -> str:
        """For people."""
        parts = []
        if self.rows:
            parts.append(words.many(self.late_rows, "row") + " late" if self.late_rows else "no row late")
            share = "" if self.amplification is None else f" ({self.amplification:.2f} × what came in)"
            parts.append(f"{words.size(self.bytes_written)} written{share}")
        if self.behind:
            parts.append(f"{words.many(self.behind, 'record')} behind")
        return "  timeline: " + (", ".join(parts) or "up to date")
