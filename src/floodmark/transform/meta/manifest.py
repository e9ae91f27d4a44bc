"""Manifests: what makes up a step's meta as of one commit. The commit names the manifest by the hash of its bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from floodmark.derive.notes import Facts
from floodmark.derive.positions import Position, bound
from floodmark.storage.sorted_runs import RunFile
from floodmark.storage.tiers import Retired
from floodmark.transform.meta.claims import RunInfo
from floodmark.transform.meta.failed import FailedFile

KIND = "floodmark.meta"

Seen = tuple[int, str]
"""The offset of a record, and the block that holds it."""


class Damaged(Exception):
    """A file that is not what the chain says."""


@dataclass(frozen=True)
class EntryFile(RunFile):
    """A sorted run of entries as the manifest names it."""

    runs: tuple[int, ...] = ()  # the numbers that occur


Segment = tuple[EntryFile, ...]
"""Files with ascending, disjoint ranges of hashes, written together."""


@dataclass(frozen=True)
class LastRun:
    """The run that committed last: how many keys it has processed in all its commits, and how many of them failed."""

    id: str
    process_ts: int
    keys: int
    failed: int
    seconds: float


@dataclass(frozen=True)
class Manifest:
    """A step's meta as of one commit."""

    transform_keys: pa.Schema = field(default_factory=lambda: pa.schema([]))
    version: str | None = None  # None before the first commit
    name: str = ""
    segments: tuple[Segment, ...] = ()  # newest first
    runs: Mapping[int, RunInfo] = field(default_factory=dict)  # those that entries refer to
    next_run: int = 0
    positions: Mapping[str, int] = field(default_factory=dict)
    blocks: Mapping[str, str] = field(default_factory=dict)  # those that hold the records at the positions
    seen: Mapping[str, Seen] = field(default_factory=dict)  # beyond the positions: the newest that a run could see
    failed: FailedFile | None = None
    keys: int = 0
    last_run: LastRun | None = None
    generation: int = 0  # commits so far
    retired: Retired = field(default=(), repr=False)

    @property
    def read(self) -> list[Position]:
        """The records of inputs that must not have been replaced: every result refers to those up to them."""
        return [*bound(self.positions, self.blocks), *(Position(name, *seen) for name, seen in self.seen.items())]

    @property
    def names(self) -> set[str]:
        """All files that the meta needs."""
        entries = {file.name for segment in self.segments for file in segment}
        return entries | ({self.failed.name} if self.failed else set())

    @property
    def referred(self) -> set[int]:
        """The numbers of the runs that entries refer to."""
        return {number for segment in self.segments for file in segment for number in file.runs}


def encode(manifest: Manifest) -> bytes:
    """The manifest as a file."""
    content = {
        "kind": KIND,
        **vars(manifest),
        "transform_keys": base64.b64encode(manifest.transform_keys.serialize()).decode(),
        "segments": [[asdict(file) for file in segment] for segment in manifest.segments],
        "runs": [[number, run.id, run.process_ts, dict(run.pinned)] for number, run in sorted(manifest.runs.items())],
        "positions": dict(manifest.positions),
        "blocks": dict(manifest.blocks),
        "seen": dict(manifest.seen),
        "failed": manifest.failed and asdict(manifest.failed),
        "last_run": manifest.last_run and asdict(manifest.last_run),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode(facts: Facts) -> Manifest:
    """The manifest in a note whose digest was seen to be right; `Damaged` when `encode` did not write it."""
    if facts.kind != KIND:
        raise Damaged(f"it is of another format ({facts.kind!r}, not {KIND!r})")
    content = facts.facts
    try:
        serialized = base64.b64decode(content["transform_keys"])
        manifest = Manifest(
            **{
                **content,
                "transform_keys": pa.ipc.read_schema(pa.py_buffer(serialized)),
                "segments": tuple(tuple(map(EntryFile.parse, segment)) for segment in content["segments"]),
                "runs": {number: RunInfo(run, at, pinned) for number, run, at, pinned in content["runs"]},
                "seen": {name: (offset, block) for name, (offset, block) in content["seen"].items()},
                "failed": content["failed"] and FailedFile(**content["failed"]),
                "last_run": content["last_run"] and LastRun(**content["last_run"]),
                "retired": tuple((generation, name) for generation, name in content["retired"]),
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise Damaged(f"it is of another format ({error})") from error
    if missing := manifest.referred - set(manifest.runs):
        raise Damaged(f"it does not say what run {min(missing)} is")
    return manifest
