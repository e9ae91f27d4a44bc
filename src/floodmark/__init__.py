"""Floodmark: an incremental data engine for PySpark."""

from floodmark.chain.hashes import Multihash
from floodmark.chain.ids import DatasetId
from floodmark.errors import FloodmarkError
from floodmark.lake import Lake
from floodmark.ledger.commit import Commit
from floodmark.ledger.dataset import Dataset
from floodmark.ledger.errors import CommitConflict, CommitUnknown, NothingToWrite, Purged, UnknownDataset
from floodmark.ledger.log import LogEntry
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.verify import Verification

__version__ = "0.1.0"

__all__ = [
    "Commit",
    "CommitConflict",
    "CommitUnknown",
    "Dataset",
    "DatasetId",
    "FloodmarkError",
    "Lake",
    "LogEntry",
    "Multihash",
    "NothingToWrite",
    "Purged",
    "Runtime",
    "UnknownDataset",
    "Verification",
]
