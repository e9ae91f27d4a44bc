"""Manifests: what makes up a step's meta as of one commit. The commit names the manifest by the hash of its bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from floodmark.transform.meta.claims import RunInfo
from floodmark.transform.meta.entry_file import Damaged, EntryFile
from floodmark.transform.meta.failed import FailedFile

FORMAT = "floodmark transform meta 1"

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
    failed: FailedFile | None = None
    keys: int = 0
    last_run: LastRun | None = None
    generation: int = 0  # commits so far
    retired: tuple[tuple[int, str], ...] = field(default=(), repr=False)  # files replaced by a commit, still there

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
        "format": FORMAT,
        **vars(manifest),
        "transform_keys": base64.b64encode(manifest.transform_keys.serialize()).decode(),
        "segments": [[asdict(file) for file in segment] for segment in manifest.segments],
        "runs": [[number, run.id, run.process_ts, dict(run.pinned)] for number, run in sorted(manifest.runs.items())],
        "positions": dict(manifest.positions),
        "failed": manifest.failed and asdict(manifest.failed),
        "last_run": manifest.last_run and asdict(manifest.last_run),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def is_note(data: bytes) -> bool:
    """Whether a checkpoint is no meta at all, but the note that an output leaves which is not its step's first."""
    try:
        content = json.loads(data)
    except ValueError:
        return False
    return isinstance(content, dict) and "kind" in content and "format" not in content


def is_manifest(data: bytes) -> bool:
    """Whether a checkpoint is meta, of this format or of one that is not known here; no note is."""
    try:
        content = json.loads(data)
    except ValueError:
        return False
    return isinstance(content, dict) and "format" in content


def decode(data: bytes) -> Manifest:
    """The manifest in a file whose digest was seen to be right; `Damaged` when `encode` did not write it."""
    try:
        content: dict[str, Any] = json.loads(data)
        if (found := content.pop("format")) != FORMAT:
            raise Damaged(f"its format is {found!r}, not {FORMAT!r}")
        serialized = base64.b64decode(content["transform_keys"])
        manifest = Manifest(
            **{
                **content,
                "transform_keys": pa.ipc.read_schema(pa.py_buffer(serialized)),
                "segments": tuple(tuple(_file(file) for file in segment) for segment in content["segments"]),
                "runs": {number: RunInfo(run, at, pinned) for number, run, at, pinned in content["runs"]},
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


def _file(content: dict[str, Any]) -> EntryFile:
    at = tuple((name, position) for name, position in content["at"])
    return EntryFile(**{**content, "at": at, "runs": tuple(content["runs"])})
