"""What a step reads and writes: its inputs and outputs as a user declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from floodmark.transform.errors import BadSpec


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
        if self.keys is not None and not isinstance(self.keys, Mapping):
            raise BadSpec(
                f"keys={self.keys!r} of input {self.name!r} does not say which column is which transform key",
                hint='give a mapping from transform keys to columns, such as keys={"image_id": "id"}',
            )
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))

    @property
    def name(self) -> str:
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
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))

    @property
    def name(self) -> str:
        return _name(self.dataset, "an output")


def Required(  # noqa: N802  reads as a word of the declaration, as in the seed's system
    dataset: Any, keys: Mapping[str, str] | None = None, columns: Sequence[str] | None = None
) -> InputSpec:
    """An input without whose rows a key is not processed: an inner join instead of a full outer one."""
    spec = as_input(dataset)
    return replace(spec, keys=spec.keys if keys is None else keys, columns=columns or spec.columns, required=True)


def as_input(given: Any) -> InputSpec:
    """An input as a user may give it: a name, a dataset or an InputSpec."""
    return given if isinstance(given, InputSpec) else InputSpec(given)


def as_output(given: Any) -> OutputSpec:
    """An output as a user may give it: a name, a dataset or an OutputSpec."""
    return given if isinstance(given, OutputSpec) else OutputSpec(given)


def _name(dataset: Any, what: str) -> str:
    found = dataset if isinstance(dataset, str) else getattr(dataset, "name", None)
    if not isinstance(found, str) or not found:
        raise BadSpec(f"{what} is {dataset!r}, which is no dataset", hint="give a dataset or its name")
    return found
