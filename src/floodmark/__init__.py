"""Floodmark: an incremental data engine for PySpark.

This module exports the public interface. Each name is imported on first use, so that a worker process or a
command that needs one small part of Floodmark does not load the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.backup.create import BackupReport as BackupReport
    from floodmark.backup.restore import RestorePlan as RestorePlan
    from floodmark.columns.backfill import BackfillReport as BackfillReport
    from floodmark.columns.survey import BackfillPlan as BackfillPlan
    from floodmark.dataset import Dataset as Dataset
    from floodmark.engine.session import Runtime as Runtime
    from floodmark.errors import BadPipeline as BadPipeline
    from floodmark.errors import BadPosition as BadPosition
    from floodmark.errors import CommitConflict as CommitConflict
    from floodmark.errors import CommitUnknown as CommitUnknown
    from floodmark.errors import FloodmarkError as FloodmarkError
    from floodmark.errors import NothingToWrite as NothingToWrite
    from floodmark.errors import RecordsPurged as RecordsPurged
    from floodmark.errors import RunFailed as RunFailed
    from floodmark.errors import UnknownDataset as UnknownDataset
    from floodmark.functions.on_error import OnError as OnError
    from floodmark.functions.on_error import Retry as Retry
    from floodmark.functions.on_error import Skip as Skip
    from floodmark.functions.udf import Udf as Udf
    from floodmark.functions.udf import udf as udf
    from floodmark.lake import Lake as Lake
    from floodmark.ledger.commit import Commit as Commit
    from floodmark.ledger.log import LogEntry as LogEntry
    from floodmark.ledger.position import Position as Position
    from floodmark.ledger.verify import VerifyReport as VerifyReport
    from floodmark.pipeline.declarations import ColumnSpec as ColumnSpec
    from floodmark.pipeline.declarations import DatasetSpec as DatasetSpec
    from floodmark.pipeline.declarations import Source as Source
    from floodmark.pipeline.declarations import ViewSpec as ViewSpec
    from floodmark.pipeline.pipeline import Pipeline as Pipeline
    from floodmark.pipeline.run import PipelineReport as PipelineReport
    from floodmark.pipeline.sql_files import sql_views as sql_views
    from floodmark.rows.erase import EraseReport as EraseReport
    from floodmark.rows.fold import FoldReport as FoldReport
    from floodmark.rows.purge import PurgeReport as PurgeReport
    from floodmark.sources.external_table import ExternalTable as ExternalTable
    from floodmark.sources.generators import BatchGenerate as BatchGenerate
    from floodmark.sources.update_external_table import UpdateExternalTable as UpdateExternalTable
    from floodmark.spark_source.source import register as register
    from floodmark.spark_source.writer import stream_sink as stream_sink
    from floodmark.transforms.batch_transform import BatchTransform as BatchTransform
    from floodmark.transforms.datatable_transform import DatatableTransform as DatatableTransform
    from floodmark.transforms.plan import RunPlan as RunPlan
    from floodmark.transforms.specs import InputSpec as InputSpec
    from floodmark.transforms.specs import OutputSpec as OutputSpec
    from floodmark.transforms.specs import Required as Required
    from floodmark.transforms.step import RunReport as RunReport
    from floodmark.transforms.step import StepStatus as StepStatus
    from floodmark.view import View as View
    from floodmark.views.plan import RefreshPlan as RefreshPlan
    from floodmark.views.plan import RefreshReport as RefreshReport

__version__ = "0.1.0"

_MODULES = {
    # Lake
    "Lake": "lake",
    "Dataset": "dataset",
    "View": "view",
    "Runtime": "engine.session",
    "Position": "ledger.position",
    # Functions
    "udf": "functions.udf",
    "Udf": "functions.udf",
    "Retry": "functions.on_error",
    "Skip": "functions.on_error",
    "OnError": "functions.on_error",
    # Steps
    "BatchTransform": "transforms.batch_transform",
    "DatatableTransform": "transforms.datatable_transform",
    "BatchGenerate": "sources.generators",
    "UpdateExternalTable": "sources.update_external_table",
    "ExternalTable": "sources.external_table",
    "InputSpec": "transforms.specs",
    "OutputSpec": "transforms.specs",
    "Required": "transforms.specs",
    # Pipelines
    "Pipeline": "pipeline.pipeline",
    "DatasetSpec": "pipeline.declarations",
    "ColumnSpec": "pipeline.declarations",
    "ViewSpec": "pipeline.declarations",
    "Source": "pipeline.declarations",
    "sql_views": "pipeline.sql_files",
    # Spark
    "register": "spark_source.source",
    "stream_sink": "spark_source.writer",
    # Answers
    "BackupReport": "backup.create",
    "RestorePlan": "backup.restore",
    "Commit": "ledger.commit",
    "LogEntry": "ledger.log",
    "StepStatus": "transforms.step",
    "BackfillPlan": "columns.survey",
    "BackfillReport": "columns.backfill",
    "RunPlan": "transforms.plan",
    "RunReport": "transforms.step",
    "RefreshPlan": "views.plan",
    "RefreshReport": "views.plan",
    "PipelineReport": "pipeline.run",
    "FoldReport": "rows.fold",
    "EraseReport": "rows.erase",
    "PurgeReport": "rows.purge",
    "VerifyReport": "ledger.verify",
    # Errors; all others are in floodmark.errors
    "FloodmarkError": "errors",
    "CommitConflict": "errors",
    "CommitUnknown": "errors",
    "NothingToWrite": "errors",
    "RecordsPurged": "errors",
    "RunFailed": "errors",
    "UnknownDataset": "errors",
    "BadPipeline": "errors",
    "BadPosition": "errors",
}

__all__ = [
    "__version__",
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
