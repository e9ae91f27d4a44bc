"""The specs of a pipeline file: datasets, sources, computed columns and views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from floodmark.errors import BadStep, CodeLocation
from floodmark.ledger import names, strategy
from floodmark.ledger.data_input import READ_ADDRESS_HINT, is_address
from floodmark.ledger.schema import declare_vocab
from floodmark.pipeline.graph import tables_in_sql
from floodmark.timeline import settings as timeline_settings
from floodmark.transforms.specs import InputSpec, OutputSpec
from floodmark.transforms.step import check_step_name, find_caller

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from floodmark.functions.udf import Udf
    from floodmark.ledger.data_input import Format
    from floodmark.ledger.strategy import Strategy
    from floodmark.sources.external_table import ExternalTable
    from floodmark.timeline.settings import Settings
    from floodmark.transforms.step import Step
    from floodmark.views.definition import RefreshPolicy, ViewDefinition


Labels = Mapping[str, str]


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset of the pipeline; the first run creates it. The options are those of `Lake.create`.

    A spec can be used as an input or output in place of the dataset's name.
    """

    name: str
    key: Sequence[str] | str | None = None
    merge: str | None = None
    compare: Sequence[str] | str | None = None
    lookup: Sequence[str] | str | None = None
    event_time: str | None = None
    schema: pa.Schema | Mapping[str, Any] | StructType | str | None = None
    partition_by: str | None = None
    row_group_size: int | None = None
    late_merge: str | None = None
    timeline: str | None = None
    vocab: Mapping[str, str] | None = None
    place: CodeLocation | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Checked here, where the line is known.
        names.check_name(self.name)
        declare_vocab(self.vocab, self.event_time)
        _ = self.strategy, self.settings
        object.__setattr__(self, "place", find_caller())

    @property
    def strategy(self) -> Strategy:
        """The merge strategy for its batches."""
        return strategy.declare(self.merge, self.key, self.compare, self.lookup)

    @property
    def settings(self) -> Settings | None:
        """The settings of its timeline; None if it has none."""
        options = (self.partition_by, self.row_group_size, self.late_merge, self.timeline)
        return timeline_settings.declare(*options, self.event_time)

    def as_input(self) -> InputSpec:
        """The dataset as an input of a step."""
        return DeclaredInput(self.name, declared=self)

    def as_output(self) -> OutputSpec:
        """The dataset as an output of a step."""
        return DeclaredOutput(self.name, self.key, self.schema, self.event_time, self.vocab, declared=self)

    def make(self, lake: Any) -> Any:
        """Create the dataset, or open it if it exists with the same options."""
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
            vocab=self.vocab,
            exist_ok=True,
        )


@dataclass(frozen=True)
class DeclaredInput(InputSpec):
    """An input given as a dataset spec; a pipeline with the step also gets the spec."""

    declared: DatasetSpec | None = None


@dataclass(frozen=True)
class DeclaredOutput(OutputSpec):
    """An output given as a dataset spec; a pipeline with the step also gets the spec."""

    declared: DatasetSpec | None = None


@dataclass(frozen=True)
class Source:
    """A source of rows for a dataset: files, a database table, or a function that returns a frame.

    `files` is a path or glob, or several, relative to the file that declares it; each run loads new and changed files
    (by path and content). `table` is an ExternalTable or the text "URL#table"; each run loads rows whose `cursor` has
    grown. `frame` is a function that returns a frame, or a pair of a frame and a text that describes how far it was
    read, or None if there is nothing new; it may take the last such text as its argument. Nothing is loaded twice,
    because the dataset's chain records what was loaded.
    """

    dataset: DatasetSpec | str
    files: str | Sequence[str] | None = None
    table: ExternalTable | str | None = None
    frame: Callable[..., Any] | None = None
    name: str | None = None
    format: Format | None = None
    cursor: str = "updated_at"
    overlap: timedelta | int | float | None = None
    labels: Labels | None = None
    place: CodeLocation | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, DatasetSpec):
            names.check_name(self.dataset)
        given = [name for name in ("files", "table", "frame") if getattr(self, name) is not None]
        if len(given) != 1:
            listed = "nothing" if not given else " and ".join(f"{name}=" for name in given)
            raise BadStep(
                f"the source of {self.output!r} is given {listed}",
                hint="give exactly one of files='data/*.csv', table='URL#table' and frame=function",
            )
        if self.format is not None and self.files is None:
            raise BadStep(
                f"format={self.format!r} is given for a source without files", hint="leave it out, or give files="
            )
        for pattern in self.patterns:
            if is_address(pattern):
                raise BadStep(
                    f"files={pattern!r} of source {self.called!r} is an address, and files are read from folders of "
                    "this machine only",
                    hint=f"{READ_ADDRESS_HINT}: frame=function",
                )
        check_step_name(self.called)
        object.__setattr__(self, "place", find_caller())

    @property
    def patterns(self) -> tuple[str, ...]:
        """The paths and globs of its files; empty for a source of another kind."""
        if self.files is None:
            return ()
        return (self.files,) if isinstance(self.files, str) else tuple(self.files)

    @property
    def output(self) -> str:
        """The name of the dataset that gets the rows."""
        return self.dataset.name if isinstance(self.dataset, DatasetSpec) else self.dataset

    @property
    def called(self) -> str:
        """Its name in commands and reports."""
        return self.name if self.name is not None else f"ingest_{self.output}"

    @property
    def declared(self) -> DatasetSpec | None:
        """The spec of its dataset, if it was given as one."""
        return self.dataset if isinstance(self.dataset, DatasetSpec) else None

    def step(self) -> Step:
        """The step that loads the rows."""
        if self.files is not None:
            from floodmark.sources.files import IngestFiles

            declared, patterns = self.declared, self.patterns
            return IngestFiles(self.called, self.output, patterns, self.format, self.labels, declared, self.place)
        if self.frame is not None:
            from floodmark.sources.generators import IngestFrame

            return IngestFrame(self.called, self.output, self.frame, self.labels, self.declared, self.place)
        from floodmark.sources.update_external_table import UpdateExternalTable

        assert self.table is not None
        output = self.dataset.as_output() if isinstance(self.dataset, DatasetSpec) else self.dataset
        options: dict[str, Any] = {"overlap": self.overlap, "labels": self.labels, "name": self.called}
        return UpdateExternalTable(output, self.table, self.cursor, **options)


@dataclass(frozen=True)
class ColumnSpec:
    """A computed column of a dataset: the first run adds it, and each run computes it for new rows.

    `inputs` are the columns that the function takes, by default the columns that its parameters name. `where` limits
    the computation to some rows. After a change of the function, all rows are computed again.
    """

    dataset: DatasetSpec | str
    name: str
    udf: Udf
    inputs: Sequence[str] | None = None
    where: str | None = None
    labels: Labels | None = None
    retry_errors: bool = False
    checkpoint_size: int | None = None
    task_size: int | None = None
    place: CodeLocation | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        from floodmark.functions.udf import Udf

        if not isinstance(self.dataset, DatasetSpec):
            names.check_name(self.dataset)
        if not isinstance(self.name, str) or not self.name:
            raise BadStep(
                f"{self.name!r} cannot name a column", hint="give text as the name: ColumnSpec('trips', 'speed', …)"
            )
        if not isinstance(self.udf, Udf):
            raise BadStep(
                f"column {self.called!r} is given {self.udf!r}, not a udf",
                hint="decorate the function with @floodmark.udf(returns='float64')",
            )
        if isinstance(self.inputs, str):
            raise BadStep(
                f"the inputs of column {self.called!r} are text, not a list", hint=f"give inputs=[{self.inputs!r}]"
            )
        _ = self.taken
        check_step_name(self.called)
        object.__setattr__(self, "place", find_caller())

    @property
    def owner(self) -> str:
        """The name of its dataset."""
        return self.dataset.name if isinstance(self.dataset, DatasetSpec) else self.dataset

    @property
    def called(self) -> str:
        """Its name in commands and reports."""
        return f"{self.owner}.{self.name}"

    @property
    def taken(self) -> tuple[str, ...]:
        """The columns that the function takes."""
        return self.udf.inputs_from(self.inputs)


@dataclass(frozen=True)
class ViewSpec:
    """A view: a query whose result is stored as a dataset and updated by each run. Options as in `Lake.view`."""

    name: str
    sql: str | None = None
    source: DatasetSpec | str | None = None
    select: Mapping[str, Any] | None = None
    where: str | None = None
    labels: Labels | None = None
    refresh: RefreshPolicy | None = None
    description: str | None = None
    place: CodeLocation | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        names.check_name(self.name)
        _ = self.definition  # checked here, where the line is known
        object.__setattr__(self, "place", find_caller())

    @property
    def definition(self) -> ViewDefinition:
        """The definition of the view."""
        from floodmark.views.definition import define

        return define(self.name, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """The options of `Lake.view`."""
        given = {"sql": self.sql, "source": self.read_from, "select": self.select, "where": self.where}
        return {**given, "refresh": self.refresh, "description": self.description}

    @property
    def read_from(self) -> str | None:
        """The name of its source, if it is declared by source=, select= and where=."""
        return self.source.name if isinstance(self.source, DatasetSpec) else self.source

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the datasets that it reads."""
        if self.sql is not None:
            return tables_in_sql(self.sql)
        return () if self.read_from is None else (self.read_from,)

    def open(self, lake: Any) -> Any:
        """Declare the view in a lake and open it. Starts no Spark if the view already has this definition."""
        return lake.view(self.name, **self._options)
