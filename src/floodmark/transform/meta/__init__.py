"""Transform meta: which keys a step has processed, by which run and up to which records, and which of them failed."""

from floodmark.storage.tiers import Tiers
from floodmark.transform.meta.claims import NEVER, NOTHING, RunInfo
from floodmark.transform.meta.draft import Draft
from floodmark.transform.meta.failed import failed_column, failed_hashes, failed_keys, failed_schema, no_failures
from floodmark.transform.meta.manifest import LastRun, Manifest
from floodmark.transform.meta.meta import Found, Read, TransformMeta

__all__ = [
    "NEVER",
    "NOTHING",
    "Draft",
    "Found",
    "LastRun",
    "Manifest",
    "Read",
    "RunInfo",
    "Tiers",
    "TransformMeta",
    "failed_column",
    "failed_hashes",
    "failed_keys",
    "failed_schema",
    "no_failures",
]
