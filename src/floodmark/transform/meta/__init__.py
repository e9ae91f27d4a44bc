"""Transform meta: which keys a step has processed, by which run and up to which records, and which of them failed."""

from floodmark.transform.meta.claims import NEVER, NOTHING, RunInfo
from floodmark.transform.meta.draft import Draft
from floodmark.transform.meta.failed import failed_column, failed_hashes, failed_keys, failed_schema, no_failures
from floodmark.transform.meta.manifest import LastRun, Manifest
from floodmark.transform.meta.meta import Found, TransformMeta
from floodmark.transform.meta.tiers import Tiers

__all__ = [
    "NEVER",
    "NOTHING",
    "Draft",
    "Found",
    "LastRun",
    "Manifest",
    "RunInfo",
    "Tiers",
    "TransformMeta",
    "failed_column",
    "failed_hashes",
    "failed_keys",
    "failed_schema",
    "no_failures",
]
