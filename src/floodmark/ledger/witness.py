"""The newest block that this machine has seen on a chain, kept outside the lake, so that `verify` finds an older head.

A head that names an older block is a valid chain. Only a copy of the newest hash in another place shows that blocks are
gone. The file is small, and losing it does no harm: `verify` writes it again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from floodmark.chain.ids import Multihash
from floodmark.errors import BadId
from floodmark.ledger.objects import DatasetObjects

STATE_FOLDER = "FLOODMARK_STATE"
"""The variable that names the folder of this user's state; by default `floodmark` in the XDG state folder."""


@dataclass(frozen=True)
class Witness:
    """A block that was on a chain: its number and its hash."""

    sequence_number: int
    block: Multihash


def read_witness(objects: DatasetObjects) -> Witness | None:
    """The newest block that this machine has seen; None if it has seen none."""
    with suppress(OSError, ValueError, BadId):
        number, block = _path(objects).read_text().split()
        return Witness(int(number), Multihash.parse(block))
    return None


def record_commit(objects: DatasetObjects, previous: Multihash | None, new: Witness) -> None:
    """Record a new head after its commit, unless the chain before it may lack blocks that this machine has seen."""
    seen = read_witness(objects)
    if seen is None or seen.block == previous:
        write_witness(objects, new)


def write_witness(objects: DatasetObjects, new: Witness) -> None:
    """Record the newest block. It is a help, so an error has no effect."""
    if not objects.store.url.startswith("memory:"):
        with suppress(OSError):
            path = _path(objects)
            path.parent.mkdir(parents=True, exist_ok=True)
            number, temporary = tempfile.mkstemp(dir=path.parent, prefix="new-")
            with os.fdopen(number, "w") as file:
                file.write(f"{new.sequence_number} {new.block.text}\n")
            Path(temporary).replace(path)


def _path(objects: DatasetObjects) -> Path:
    given = os.environ.get(STATE_FOLDER)
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(given) if given else Path(state).expanduser() / "floodmark"
    name = hashlib.sha256(f"{objects.store.url}/{objects.folder}".encode()).hexdigest()[:32]
    return folder / "heads" / name
