"""What a step reads and writes: its inputs and outputs as a user declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from floodmark.ledger.errors import UnsupportedType
from floodmark.ledger.layout import fields_from
from floodmark.transform.errors import BadSpec, BadStep


@dataclass(frozen=True)
class InputSpec:
    """A dataset that a step reads, by name or as an object.

    `keys` says which column is which transform key where the names differ: {"image_id": "id"}. `columns` are those that
    the function needs; the transform keys always come along. `required`: keys without a row here are not processed.
    """

    dataset: Any
    keys: Mapping[str, str] | None = None
    columns: Sequence[str] | None = None
    required: bool = False

    def __post_init__(self) -> None:
        _name(self.dataset, "an input")
        if self.keys is not None and not (isinstance(self.keys, Mapping) and _are_texts(_flat(self.keys))):
            raise BadSpec(
                f"keys={self.keys!r} of input {self.name!r} does not say which column is which transform key",
                hint='give a mapping from transform keys to columns, such as keys={"image_id": "id"}',
            )
        if self.columns is not None:
            object.__setattr__(self, "columns", names(self.columns, f"columns of input {self.name!r}"))
        if not isinstance(self.required, bool):
            raise BadSpec(
                f"required={self.required!r} of input {self.name!r} is neither True nor False", hint="say which"
            )

    @property
    def name(self) -> str:
        """The name of the dataset that is read."""
        return _name(self.dataset, "an input")


@dataclass(frozen=True)
class OutputSpec:
    """A dataset that a step writes, made on its first run. `key` identifies a row; by default the transform keys do.

    `schema` fixes the columns, which otherwise are those of the first result. `event_time` names the column that says
    when an event happened.
    """

    dataset: Any
    key: Sequence[str] | str | None = None
    schema: Any = None
    event_time: str | None = None

    def __post_init__(self) -> None:
        _name(self.dataset, "an output")
        if self.key is not None:
            key = names(self.key, f"key of output {self.name!r}")
            if not key:
                raise BadSpec(f"the key of output {self.name!r} has no column", hint="leave it out, or name some")
            object.__setattr__(self, "key", key)
        if self.event_time is not None and not _are_texts([self.event_time]):
            raise BadSpec(
                f"event_time={self.event_time!r} of output {self.name!r} is no column", hint="give a column's name"
            )
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
            raise BadSpec(f"the schema of output {self.name!r}: {error.message}", hint=error.hint) from error
        except (TypeError, ValueError) as error:
            raise BadSpec(
                f"schema={_shortly(self.schema)} of output {self.name!r} is none",
                hint="give types by name, {'id': 'int64'}, or a pyarrow schema",
            ) from error


def Required(  # noqa: N802  reads as a word of the declaration, as in the seed's system
    dataset: Any, keys: Mapping[str, str] | None = None, columns: Sequence[str] | None = None
) -> InputSpec:
    """An input without whose rows a key is not processed: an inner join instead of a full outer one."""
    spec = as_input(dataset)
    return replace(
        spec,
        keys=spec.keys if keys is None else keys,
        columns=spec.columns if columns is None else columns,
        required=True,
    )


@runtime_checkable
class Declared(Protocol):
    """A dataset that is declared, and need not be there yet."""

    def as_input(self) -> InputSpec:
        """What reading it means."""

    def as_output(self) -> OutputSpec:
        """What writing it means."""


def as_input(given: Any) -> InputSpec:
    """An input as a user may give it: a name, a dataset, a declared one or an InputSpec."""
    if isinstance(given, Declared):
        return given.as_input()
    return given if isinstance(given, InputSpec) else InputSpec(given)


def as_output(given: Any) -> OutputSpec:
    """An output as a user may give it: a name, a dataset, a declared one or an OutputSpec."""
    if isinstance(given, Declared):
        return given.as_output()
    return given if isinstance(given, OutputSpec) else OutputSpec(given)


def listed(given: Any) -> Sequence[Any]:
    """Several inputs or outputs; a single one may stand alone."""
    return given if isinstance(given, list | tuple) else (given,)


def names(given: Any, what: str) -> tuple[str, ...]:
    """Names of columns as a user may give them: one text or several, each once."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else None
    if found is None or not _are_texts(found):
        raise BadSpec(f"the {what} are {given!r}, not names of columns", hint="give a list of texts, such as ['id']")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise BadSpec(f"the {what} have {twice!r} twice", hint="name each column once")
    return found


def check_in_lake(specs: Sequence[InputSpec | OutputSpec], lake: Any, step: str) -> None:
    """Refuse to run in something that is no lake, or in another one than that of a dataset which was given itself."""
    if not (hasattr(lake, "store") and hasattr(lake, "runtime")):
        raise BadStep(
            f"step {step!r} needs a lake, not {lake!r}", hint="open one and give it: step.run(Lake('…'))", step=step
        )
    for spec in specs:
        if isinstance(spec.dataset, str):
            continue
        if spec.name not in lake or lake[spec.name].id != spec.dataset.id:
            raise BadStep(
                f"step {step!r} was given a dataset {spec.name!r} that is not the one in {lake!r}: it is of another "
                "lake, or was dropped",
                hint=f"run it with that lake, or give the dataset's name, {spec.name!r}, which is looked up in each",
                step=step,
            )


def _name(dataset: Any, what: str) -> str:
    if isinstance(dataset, str) and dataset:
        return dataset
    name = getattr(dataset, "name", None)
    if not isinstance(name, str) or not hasattr(dataset, "snapshot"):
        raise BadSpec(f"{what} is {_shortly(dataset)}, which is no dataset", hint="give a dataset or its name")
    return name


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _flat(pairs: Mapping[Any, Any]) -> list[Any]:
    return [*pairs.keys(), *pairs.values()]


def _shortly(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:79]}…"
