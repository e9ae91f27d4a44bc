"""Files of a timeline's own: their names say what the whole file and its footer must hash to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from floodmark.chain.hashes import Multihash
from floodmark.storage.slices import RowsFile

FOLDER = "info/timeline/files"
"""Below the dataset's folder."""

_NAME = re.compile(rf"{FOLDER}/(f[0-9a-f]+)-([0-9]+)-([0-9a-f]{{8}})")


@dataclass(frozen=True)
class OwnFile:
    """What the name of a file says of it. Pages have checksums in the file; what says where they are has its here."""

    physical_hash: Multihash
    tail: int  # how many bytes follow the last page
    tail_checksum: int  # CRC-32

    @property
    def name(self) -> str:
        """Where it lies below the dataset's folder."""
        return f"{FOLDER}/{self.physical_hash.text}-{self.tail}-{self.tail_checksum:08x}"


def named_after(made: RowsFile) -> OwnFile:
    """The name of a file that was just written."""
    return OwnFile(made.physical_hash, made.tail, made.tail_checksum)


def own_file(name: str) -> OwnFile | None:
    """What a name says, None when it is not one of ours: slices of the ledger are not."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    text, tail, checksum = found.groups()
    return OwnFile(Multihash.parse(text), int(tail), int(checksum, 16))


def remedy(file: str) -> str:
    """What to do about a piece's file that cannot be read: own files come from the ledger, whose slices do not."""
    if file.startswith(f"{FOLDER}/"):
        return "the ledger has its rows: fold() makes it anew from there"
    return "it is a slice of the ledger: verify() says what is wrong with it"
