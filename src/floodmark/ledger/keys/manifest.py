"""Manifests: which files make up the key index as of one block. Small, checked as a whole, written last."""

from __future__ import annotations

from dataclasses import dataclass, field

from floodmark.ledger.errors import bad_index
from floodmark.ledger.keys.dead import DeadFile
from floodmark.ledger.strategy import Strategy
from floodmark.storage import document
from floodmark.storage.document import Damaged
from floodmark.storage.sorted_runs import RunFile
from floodmark.storage.tiers import Retired

_KIND = "key index"
HASHING = 1
"""Which rules made the hashes; files of other rules are not used."""

At = tuple[int, bytes]
"""A block: its sequence number and the digest of its hash."""


@dataclass(frozen=True)
class Shape:
    """What the hashes of an index are taken over."""

    key: tuple[str, ...]
    lookup: tuple[str, ...]
    hashing: int = HASHING

    @staticmethod
    def of(strategy: Strategy) -> Shape:
        return Shape(strategy.key, strategy.lookup)

    @property
    def has_prefix(self) -> bool:
        return self.lookup != self.key


@dataclass(frozen=True)
class Segment:
    """What the records [start, end) say: runs with ascending, disjoint ranges of hashes, and what they ended."""

    start: int
    end: int
    runs: tuple[RunFile, ...]
    dead: tuple[DeadFile, ...]

    @property
    def entries(self) -> int:
        return sum(run.entries for run in self.runs)

    @property
    def kills(self) -> int:
        return sum(file.kills for file in self.dead)

    @property
    def names(self) -> list[str]:
        return [*(run.name for run in self.runs), *(file.name for file in self.dead)]


@dataclass(frozen=True)
class Manifest:
    """The key index as of a block: segments, newest first, that follow each other without a gap."""

    shape: Shape
    at: At | None  # None before the first record
    start: int  # 0, or where a purge had come to when the index was built
    end: int
    segments: tuple[Segment, ...] = ()
    generation: int = 0
    previous: tuple[str, ...] = ()  # the manifests before this one that are still there, newest first
    retired: Retired = field(default=(), repr=False)

    @property
    def name(self) -> str:
        assert self.at is not None
        return manifest_name(self.at)

    @property
    def kills(self) -> int:
        return sum(segment.kills for segment in self.segments)

    @property
    def names(self) -> set[str]:
        """All files that the index needs."""
        return {name for segment in self.segments for name in segment.names}

    def problem(self) -> str | None:
        """What is wrong with the order of the segments, if anything."""
        end = self.end
        for segment in self.segments:
            if segment.end != end or segment.start > segment.end:
                return f"a segment ends at {segment.end} where {end} was due"
            end = segment.start
        return None if end == self.start else f"the segments begin at {end}, not at {self.start}"


def manifest_name(at: At) -> str:
    return f"{at[0]:012d}-{at[1].hex()}"


def encode(manifest: Manifest) -> bytes:
    """The manifest as a document."""
    return document.encode(_KIND, 1, vars(manifest))


def decode(name: str, data: bytes) -> Manifest:
    """The manifest in the file of this name; `BadIndex` for anything that `encode` did not write whole under it."""
    try:
        content = document.decode(data, _KIND, name).facts
        sequence_number, digest = content["at"]
        shape = content["shape"]
        manifest = Manifest(
            shape=Shape(tuple(shape["key"]), tuple(shape["lookup"]), shape["hashing"]),
            at=(sequence_number, bytes.fromhex(digest)),
            start=content["start"],
            end=content["end"],
            segments=tuple(_segment(s) for s in content["segments"]),
            generation=content["generation"],
            previous=tuple(content["previous"]),
            retired=tuple((generation, file) for generation, file in content["retired"]),
        )
    except Damaged as error:
        raise bad_index(name, error.problem) from error
    except (KeyError, TypeError, ValueError) as error:
        raise bad_index(name, f"it is of another format ({error})") from error
    problem = manifest.problem() or (f"it is {manifest.name}" if manifest.name != name else None)
    if problem:
        raise bad_index(name, problem)
    return manifest


def _segment(content: dict[str, object]) -> Segment:
    runs = [RunFile.parse(r) for r in content["runs"]]  # type: ignore[attr-defined]
    dead = [DeadFile(**d) for d in content["dead"]]  # type: ignore[attr-defined]
    return Segment(content["start"], content["end"], tuple(runs), tuple(dead))  # type: ignore[arg-type]
