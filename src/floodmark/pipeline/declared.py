"""Declarations: what a project's datasets, sources, columns and views should be, before any of it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from floodmark.ledger import names, strategy
from floodmark.pipeline.errors import BadDeclaration
from floodmark.pipeline.tables import tables
from floodmark.timeline import settings as timelines
from floodmark.transform.place import Place, here
from floodmark.transform.specs import InputSpec, OutputSpec
from floodmark.transform.step import check_step_name

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.compute.functions.udf import Udf
    from floodmark.ledger.incoming import Format
    from floodmark.ledger.strategy import Strategy
    from floodmark.timeline.settings import Settings
    from floodmark.transform.external.table import ExternalTable
    from floodmark.transform.step import Step
    from floodmark.transform.views.defined.definition import Definition

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Dataset:
    """A dataset that the pipeline needs; it is made by the first run. The options are those of `Lake.create`.

    It can be given as an input or output wherever its name can.
    """

    name: str
    key: Sequence[str] | str | None = None
    merge: str | None = None
    compare: Sequence[str] | str | None = None
    lookup: Sequence[str] | str | None = None
    event_time: str | None = None
    schema: pa.Schema | Mapping[str, Any] | None = None
    partition_by: str | None = None
    row_group_size: int | None = None
    late_merge: str | None = None
    timeline: str | None = None
    place: Place | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names.check_name(self.name)
        _ = self.strategy, self.settings  # refused here, where the line is known
        object.__setattr__(self, "place", here())

    @property
    def strategy(self) -> Strategy:
        """What becomes of a batch."""
        return strategy.declare(self.merge, self.key, self.compare, self.lookup)

    @property
    def settings(self) -> Settings | None:
        """Its timeline, if it is to keep one."""
        options = (self.partition_by, self.row_group_size, self.late_merge, self.timeline)
        return timelines.declare(*options, self.event_time)

    def as_input(self) -> InputSpec:
        """What reading it means to a step."""
        return DeclaredInput(self.name, declared=self)

    def as_output(self) -> OutputSpec:
        """What writing it means to a step."""
        return DeclaredOutput(self.name, self.key, self.schema, self.event_time, declared=self)

    def make(self, lake: Any) -> Any:
        """The dataset, made if it is not there; refused if the one that is there was made otherwise."""
        return lake.create(
            self.name,
            key=self.key,
            merge=self.merge,
            compare=self.compare,
            lookup=self.lookup,
            event_time=self.event_time,
            schema=self.schema,
            partition_by=self.partition_by,
            row_group_size=self.row_group_size,
            late_merge=self.late_merge,
            timeline=self.timeline,
            exist_ok=True,
        )


@dataclass(frozen=True)
class DeclaredInput(InputSpec):
    """An input that was given as a declaration: a pipeline that takes the step takes that, too."""

    declared: Dataset | None = None


@dataclass(frozen=True)
class DeclaredOutput(OutputSpec):
    """An output that was given as a declaration: a pipeline that takes the step takes that, too."""

    declared: Dataset | None = None


@dataclass(frozen=True)
class Source:
    """Where the rows of a dataset come from: files, a table in a database, or a function that gives a frame.

    `files` is a path or glob, or several, relative to the file that declares it: each run takes the files that are new,
    by their content. `table` is an ExternalTable or the text "URL#table", of which each run takes the rows whose
    `cursor` has grown. `frame` is a function that gives a frame, a pair of a frame and a text that says how far it
    was read, or None when there is nothing new; it may take that text of the last time as its argument. Nothing is
    taken in twice: what was, the dataset's chain says.
    """

    dataset: Dataset | str
    files: str | Sequence[str] | None = None
    table: ExternalTable | str | None = None
    frame: Callable[..., Any] | None = None
    name: str | None = None
    format: Format | None = None
    cursor: str = "updated_at"
    overlap: timedelta | int | float | None = None
    labels: Labels | None = None
    place: Place | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, Dataset):
            names.check_name(self.dataset)
        given = [name for name in ("files", "table", "frame") if getattr(self, name) is not None]
        if len(given) != 1:
            said = "nothing" if not given else " and ".join(f"{name}=" for name in given)
            raise BadDeclaration(
                f"the source of {self.output!r} is given {said}",
                hint="give one of files='data/*.csv', table='URL#table' and frame=function",
            )
        if self.format is not None and self.files is None:
            raise BadDeclaration(
                f"format={self.format!r} of a source without files", hint="leave it out, or give files="
            )
        check_step_name(self.called)
        object.__setattr__(self, "place", here())

    @property
    def output(self) -> str:
        """The dataset that the rows go to."""
        return self.dataset.name if isinstance(self.dataset, Dataset) else self.dataset

    @property
    def called(self) -> str:
        """What it is called, in commands and reports."""
        return self.name if self.name is not None else f"ingest_{self.output}"

    @property
    def declared(self) -> Dataset | None:
        """The dataset, if it is declared here."""
        return self.dataset if isinstance(self.dataset, Dataset) else None

    def step(self) -> Step:
        """What takes the rows in."""
        if self.files is not None:
            from floodmark.pipeline.ingest_files import IngestFiles

            patterns = (self.files,) if isinstance(self.files, str) else tuple(self.files)
            return IngestFiles(self.called, self.output, patterns, self.format, self.labels, self.declared, self.place)
        if self.frame is not None:
            from floodmark.pipeline.ingest_frame import IngestFrame

            return IngestFrame(self.called, self.output, self.frame, self.labels, self.declared, self.place)
        from floodmark.transform.external.update import UpdateExternalTable

        assert self.table is not None
        output = self.dataset.as_output() if isinstance(self.dataset, Dataset) else self.dataset
        options: dict[str, Any] = {"overlap": self.overlap, "labels": self.labels, "name": self.called}
        return UpdateExternalTable(output, self.table, self.cursor, **options)


@dataclass(frozen=True)
class Column:
    """A column of a dataset that a function computes: added by the first run, computed for new rows by each.

    `inputs` are the columns that the function takes, by default those its parameters name. `where` keeps some rows
    only. A changed function computes everything once more.
    """

    dataset: Dataset | str
    name: str
    udf: Udf
    inputs: Sequence[str] | None = None
    where: str | None = None
    labels: Labels | None = None
    retry_errors: bool = False
    checkpoint_size: int | None = None
    task_size: int | None = None
    place: Place | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        from floodmark.compute.functions.udf import Udf

        if not isinstance(self.dataset, Dataset):
            names.check_name(self.dataset)
        if not isinstance(self.name, str) or not self.name:
            raise BadDeclaration(f"{self.name!r} cannot name a column", hint="give a text: Column('trips', 'speed', …)")
        if not isinstance(self.udf, Udf):
            raise BadDeclaration(
                f"column {self.called!r} is not given a udf, but {self.udf!r}",
                hint="make one of the function: @floodmark.udf(returns='float64')",
            )
        if isinstance(self.inputs, str):
            raise BadDeclaration(f"the inputs of column {self.called!r} are a text", hint=f"give [{self.inputs!r}]")
        _ = self.taken
        check_step_name(self.called)
        object.__setattr__(self, "place", here())

    @property
    def owner(self) -> str:
        """The dataset that has it."""
        return self.dataset.name if isinstance(self.dataset, Dataset) else self.dataset

    @property
    def called(self) -> str:
        """What it is called, in commands and reports."""
        return f"{self.owner}.{self.name}"

    @property
    def taken(self) -> tuple[str, ...]:
        """The columns that the function takes."""
        return self.udf.inputs_from(self.inputs)


@dataclass(frozen=True)
class View:
    """A query whose result is kept as a dataset, and brought up to date by each run. The options are `Lake.view`'s."""

    name: str
    sql: str | None = None
    source: Dataset | str | None = None
    select: Mapping[str, Any] | None = None
    where: str | None = None
    labels: Labels | None = None
    place: Place | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names.check_name(self.name)
        _ = self.definition  # refused here, where the line is known
        object.__setattr__(self, "place", here())

    @property
    def definition(self) -> Definition:
        """The query, as a view has it."""
        from floodmark.transform.views.defined.definition import define

        return define(self.name, sql=self.sql, source=self.read_from, select=self.select, where=self.where)

    @property
    def read_from(self) -> str | None:
        """The dataset it is made from, if it is given as one with select= and where=."""
        return self.source.name if isinstance(self.source, Dataset) else self.source

    @property
    def reads(self) -> tuple[str, ...]:
        """The datasets that it is made from."""
        if self.sql is not None:
            return tables(self.sql)
        return () if self.read_from is None else (self.read_from,)

    def open(self, lake: Any) -> Any:
        """The view, declared in a lake; without Spark if this very definition is there already."""
        return lake.view(self.name, sql=self.sql, source=self.read_from, select=self.select, where=self.where)
