"""The declared inputs and outputs of a step: `InputSpec`, `OutputSpec`, `Required`, and checks of declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from floodmark.derive.inputs import InputSnapshot, LakeLike, snapshot_dataset
from floodmark.errors import BadData, BadStep, UnsupportedType
from floodmark.ledger.schema import declare_vocab, fields_from


def snapshot_inputs(lake: LakeLike, specs: Sequence[InputSpec]) -> tuple[InputSnapshot, ...]:
    """Snapshots of the inputs at their current heads; a dataset that is named twice gets one snapshot."""
    snapshots: dict[str, InputSnapshot] = {}
    for spec in specs:
        if spec.name not in snapshots:
            snapshots[spec.name] = snapshot_dataset(lake[spec.name])
        _check_columns(spec, snapshots[spec.name], lake)
    return tuple(snapshots[spec.name] for spec in specs)


def _check_columns(spec: InputSpec, input_snapshot: InputSnapshot, lake: LakeLike) -> None:
    if spec.columns is None or input_snapshot.layout is None:
        return
    known = input_snapshot.layout.data.names
    unknown = [name for name in spec.columns if name not in known]
    if not unknown:
        return
    if lake[spec.name].catalog.find(unknown[0]) is not None:
        raise BadStep(
            f"column {unknown[0]!r} of {spec.name!r} is a computed column; steps cannot read computed columns yet",
            hint="compute it in the step's function, or in another step",
            column=unknown[0],
        )
    raise BadStep(
        f"input {spec.name!r} has no column {unknown[0]!r}",
        hint=f"it has {', '.join(input_snapshot.layout.shown.names)}",
        column=unknown[0],
    )


@dataclass(frozen=True)
class InputSpec:
    """A dataset that a step reads, by name or as an object.

    `keys` maps transform keys to columns of the dataset if the names differ: {"image_id": "id"}. It may also name
    columns of another input, by whose rows this dataset is looked up. If the dataset has none of the transform keys,
    every call gets all its rows. `columns` are the columns that the function reads; it always gets the transform keys,
    too. Changes in other columns do not make a key pending. With `required`, keys without a row in this dataset are not
    processed.
    """

    dataset: Any
    keys: Mapping[str, str] | None = None
    columns: Sequence[str] | None = None
    required: bool = False

    def __post_init__(self) -> None:
        _name(self.dataset, "an input")
        if self.keys is not None and not (isinstance(self.keys, Mapping) and _are_texts(_flat(self.keys))):
            raise BadStep(
                f"keys={self.keys!r} of input {self.name!r} is not a mapping from transform keys to columns",
                hint='give one such as keys={"image_id": "id"}',
            )
        if self.columns is not None:
            object.__setattr__(self, "columns", parse_column_names(self.columns, f"columns of input {self.name!r}"))
        if not isinstance(self.required, bool):
            raise BadStep(
                f"required={self.required!r} of input {self.name!r} is neither True nor False",
                hint="give True or False, or leave it out",
            )

    @property
    def name(self) -> str:
        """The name of the dataset that is read."""
        return _name(self.dataset, "an input")


@dataclass(frozen=True)
class OutputSpec:
    """A dataset that a step writes; the step's first run creates it.

    `key` names the columns that identify a row, by default the transform keys. If it lacks some of them, one call gets
    all rows of a key of the output; if it lacks all, the rows get them as columns. `schema` fixes the columns; by
    default they are those of the first result. `event_time` names the column with the time of the event. `vocab`
    renames system columns, as in `Lake.create`.
    """

    dataset: Any
    key: Sequence[str] | str | None = None
    schema: Any = None
    event_time: str | None = None
    vocab: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _name(self.dataset, "an output")
        if self.key is not None:
            key = parse_column_names(self.key, f"key of output {self.name!r}")
            if not key:
                raise BadStep(
                    f"the key of output {self.name!r} has no column", hint="leave key= out, or name at least one column"
                )
            object.__setattr__(self, "key", key)
        if self.event_time is not None and not _are_texts([self.event_time]):
            raise BadStep(
                f"event_time={self.event_time!r} of output {self.name!r} is not a column name",
                hint="give the name of a column",
            )
        declare_vocab(self.vocab, self.event_time)  # checked here, where the line is known
        self._check_schema()

    @property
    def name(self) -> str:
        """The name of the dataset that is written."""
        return _name(self.dataset, "an output")

    def _check_schema(self) -> None:
        if self.schema is None:
            return
        try:
            fields_from(self.schema)
        except UnsupportedType as error:
            raise BadStep(f"the schema of output {self.name!r}: {error.message}", hint=error.hint) from error
        except BadData as error:
            raise BadStep(
                f"schema={_shortly(self.schema)} of output {self.name!r} is not a schema",
                hint="give types by column, {'id': 'int64'}, or a pyarrow schema",
            ) from error


def Required(  # noqa: N802  reads as a word of the declaration, as in the seed's system
    dataset: Any, keys: Mapping[str, str] | None = None, columns: Sequence[str] | None = None
) -> InputSpec:
    """An input that every processed key must have a row in: an inner join instead of a full outer join."""
    spec = as_input(dataset)
    return replace(
        spec,
        keys=spec.keys if keys is None else keys,
        columns=spec.columns if columns is None else columns,
        required=True,
    )


@runtime_checkable
class DeclaredDataset(Protocol):
    """A declared dataset, which may not exist yet."""

    def as_input(self) -> InputSpec:
        """The dataset as an input."""

    def as_output(self) -> OutputSpec:
        """The dataset as an output."""


def as_input(given: Any) -> InputSpec:
    """An InputSpec from a name, a dataset, a declared dataset or an InputSpec."""
    if isinstance(given, DeclaredDataset):
        return given.as_input()
    return given if isinstance(given, InputSpec) else InputSpec(given)


def as_output(given: Any) -> OutputSpec:
    """An OutputSpec from a name, a dataset, a declared dataset or an OutputSpec."""
    if isinstance(given, DeclaredDataset):
        return given.as_output()
    return given if isinstance(given, OutputSpec) else OutputSpec(given)


def as_list(given: Any) -> Sequence[Any]:
    """Inputs or outputs as a sequence; a single one needs no list."""
    return given if isinstance(given, list | tuple) else (given,)


def parse_column_names(given: Any, what: str) -> tuple[str, ...]:
    """Column names from one name or a list of names, each once."""
    columns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else None
    if columns is None or not _are_texts(columns):
        raise BadStep(f"the {what} are {given!r}, not column names", hint="give a list of names, such as ['id']")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise BadStep(f"the {what} have {twice!r} twice", hint="name each column once")
    return columns


def check_repeated_inputs(specs: Sequence[InputSpec], step: str) -> None:
    """Refuse a dataset that is an input twice by the same transform keys: both frames would be the same."""
    seen = set()
    for spec in specs:
        use = (spec.name, tuple(sorted((spec.keys or {}).items())))
        if use in seen:
            raise BadStep(
                f"step {step!r} reads {spec.name!r} twice by the same keys",
                hint="name it once, because the function may use its frame several times; or give each other keys: "
                f'InputSpec({spec.name!r}, keys={{"buyer": "id"}}), InputSpec({spec.name!r}, keys={{"seller": "id"}})',
                step=step,
                input=spec.name,
            )
        seen.add(use)


def check_in_lake(specs: Sequence[InputSpec | OutputSpec], lake: Any, step: str) -> None:
    """Refuse to run without a lake, or in another lake than that of a dataset object in the declaration."""
    if not (hasattr(lake, "store") and hasattr(lake, "runtime")):
        raise BadStep(
            f"step {step!r} needs a lake, not {lake!r}", hint="open one and pass it: step.run(Lake('…'))", step=step
        )
    for spec in specs:
        if isinstance(spec.dataset, str):
            continue
        if spec.name not in lake or lake[spec.name].id != spec.dataset.id:
            raise BadStep(
                f"step {step!r} was declared with a dataset {spec.name!r} that is not the one in {lake!r}: it is from "
                "another lake, or was dropped",
                hint=f"run the step with that lake, or give the dataset's name, {spec.name!r}, which works in any lake",
                step=step,
            )


def _name(dataset: Any, what: str) -> str:
    if isinstance(dataset, str) and dataset:
        return dataset
    name = getattr(dataset, "name", None)
    if not isinstance(name, str) or not hasattr(dataset, "snapshot"):
        raise BadStep(f"{what} is {_shortly(dataset)}, which is not a dataset", hint="give a dataset or its name")
    return name


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _flat(pairs: Mapping[Any, Any]) -> list[Any]:
    return [*pairs.keys(), *pairs.values()]


def _shortly(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:79]}…"
