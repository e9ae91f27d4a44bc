"""Floodmark: an incremental data engine for PySpark.

What is exported here is the public interface. It is imported when it is first asked for: a worker process or a
command that needs one small part of Floodmark does not wait for all of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.chain.hashes import Multihash as Multihash
    from floodmark.chain.ids import DatasetId as DatasetId
    from floodmark.compute.backfill import Backfill as Backfill
    from floodmark.compute.functions.udf import Udf as Udf
    from floodmark.compute.functions.udf import udf as udf
    from floodmark.compute.survey import BackfillPlan as BackfillPlan
    from floodmark.errors import FloodmarkError as FloodmarkError
    from floodmark.functions.on_error import OnError as OnError
    from floodmark.functions.on_error import Retry as Retry
    from floodmark.functions.on_error import Skip as Skip
    from floodmark.lake import Lake as Lake
    from floodmark.ledger.commit import Commit as Commit
    from floodmark.ledger.errors import CommitConflict as CommitConflict
    from floodmark.ledger.errors import CommitUnknown as CommitUnknown
    from floodmark.ledger.errors import NothingToWrite as NothingToWrite
    from floodmark.ledger.errors import Purged as Purged
    from floodmark.ledger.errors import UnknownDataset as UnknownDataset
    from floodmark.ledger.fold import Fold as Fold
    from floodmark.ledger.log import LogEntry as LogEntry
    from floodmark.ledger.purge import Purge as Purge
    from floodmark.ledger.runtime import Runtime as Runtime
    from floodmark.ledger.verify import Verification as Verification
    from floodmark.pipeline.declared import Column as Column
    from floodmark.pipeline.declared import Dataset as Dataset
    from floodmark.pipeline.declared import Source as Source
    from floodmark.pipeline.declared import View as View
    from floodmark.pipeline.errors import BadPipeline as BadPipeline
    from floodmark.pipeline.pipeline import Pipeline as Pipeline
    from floodmark.pipeline.running import Ran as Ran
    from floodmark.spark_source.register import register as register
    from floodmark.spark_source.sink import sink as sink
    from floodmark.transform.batch_transform import BatchTransform as BatchTransform
    from floodmark.transform.external.table import ExternalTable as ExternalTable
    from floodmark.transform.external.update import UpdateExternalTable as UpdateExternalTable
    from floodmark.transform.plan import TransformPlan as TransformPlan
    from floodmark.transform.refresh.datatable import DatatableTransform as DatatableTransform
    from floodmark.transform.refresh.generate import BatchGenerate as BatchGenerate
    from floodmark.transform.report import RunReport as RunReport
    from floodmark.transform.report import StepStatus as StepStatus
    from floodmark.transform.specs import InputSpec as InputSpec
    from floodmark.transform.specs import OutputSpec as OutputSpec
    from floodmark.transform.specs import Required as Required
    from floodmark.transform.views.plan import ViewPlan as ViewPlan
    from floodmark.transform.views.report import Refreshed as Refreshed

__version__ = "0.1.0"

_HOMES = {
    "Backfill": "compute.backfill",
    "BackfillPlan": "compute.survey",
    "BadPipeline": "pipeline.errors",
    "BatchGenerate": "transform.refresh.generate",
    "BatchTransform": "transform.batch_transform",
    "Column": "pipeline.declared",
    "Commit": "ledger.commit",
    "CommitConflict": "ledger.errors",
    "CommitUnknown": "ledger.errors",
    "Dataset": "pipeline.declared",
    "DatasetId": "chain.ids",
    "DatatableTransform": "transform.refresh.datatable",
    "ExternalTable": "transform.external.table",
    "FloodmarkError": "errors",
    "Fold": "ledger.fold",
    "InputSpec": "transform.specs",
    "Lake": "lake",
    "LogEntry": "ledger.log",
    "Multihash": "chain.hashes",
    "NothingToWrite": "ledger.errors",
    "OnError": "functions.on_error",
    "OutputSpec": "transform.specs",
    "Pipeline": "pipeline.pipeline",
    "Purge": "ledger.purge",
    "Purged": "ledger.errors",
    "Ran": "pipeline.running",
    "Refreshed": "transform.views.report",
    "Required": "transform.specs",
    "Retry": "functions.on_error",
    "RunReport": "transform.report",
    "Runtime": "ledger.runtime",
    "Skip": "functions.on_error",
    "Source": "pipeline.declared",
    "StepStatus": "transform.report",
    "TransformPlan": "transform.plan",
    "Udf": "compute.functions.udf",
    "UnknownDataset": "ledger.errors",
    "UpdateExternalTable": "transform.external.update",
    "Verification": "ledger.verify",
    "View": "pipeline.declared",
    "ViewPlan": "transform.views.plan",
    "register": "spark_source.register",
    "sink": "spark_source.sink",
    "udf": "compute.functions.udf",
}

__all__ = [
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
