"""Parsing of arguments: functions of columns by module name, keys, and lists of columns."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from floodmark.cli import output
from floodmark.cli.exit_codes import CommandError

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.columns.catalog import FunctionRef
    from floodmark.dataset import Dataset
    from floodmark.functions.udf import Udf
    from floodmark.ledger.position import Position


# Modules that other processes cannot import: a script, a notebook, an interactive session.
F = TypeVar("F", bound=Callable[..., Any])

_NOT_IMPORTABLE = ("", "__main__", "__mp_main__")


@dataclass(frozen=True)
class FunctionLookup:
    """The column of a dataset or view whose function is imported. `retake` is the hint if the function changed."""

    name: str
    function: FunctionRef
    redefine_hint: Callable[[str], str]


def find_function(column: FunctionLookup, named: str | None, mark: Path | None) -> Udf:
    """Import the function that computes a column, from the module where it was defined or from `named`.

    `mark` is a folder of the lake, None for a bucket. A module inside the lake is refused: write access to data must
    not allow a user to run code.
    """
    from floodmark.functions.udf import find_udf

    reference = column.function
    if named is not None:
        module_name, _, path = named.partition(":")
        return _check_version(_attribute_at(column, _imported(column, module_name), path), column, named)
    if reference.module in _NOT_IMPORTABLE:
        raise CommandError(
            f"the function {reference.qualname!r} of column {column.name!r} was defined in a script or a notebook,"
            " which cannot be imported",
            hint=f"move it to a module and name it: --udf MODULE:{reference.qualname}",
            column=column.name,
            module=reference.module,
        )
    if mark is not None:
        _refuse_module_in_lake(mark.parent, column, reference.module)
    module = _imported(column, reference.module)
    if (found := find_udf(reference.name, reference.version)) is not None:
        return found
    return _check_version(_udf_of_same_name(column, module), column, f"{reference.module}:{reference.qualname}")


def _refuse_module_in_lake(lake: Path, column: FunctionLookup, name: str) -> None:
    """Refuse a module inside the lake before it is imported."""
    _add_folder_to_path()
    spec = importlib.util.find_spec(name.partition(".")[0])
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(p is not None and Path(p).resolve().is_relative_to(lake.resolve()) for p in places):
        raise CommandError(
            f"the module {name!r} that the lake names for column {column.name!r} is a file of the lake",
            hint="move the code out of the lake; if you trust it, name it: --udf MODULE:NAME",
            column=column.name,
            module=name,
        )


def check_function_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse a value that is not MODULE:NAME."""
    if value is None:
        return None
    module, _colon, name = value.partition(":")
    if module.endswith(".py") or "/" in module:
        raise click.BadParameter(f"name the module, not its file: {Path(module).stem}:{name or 'NAME'}.")
    if not module or not name:
        raise click.BadParameter("write it as MODULE:NAME, such as features.images:brightness.")
    return value


def check_function_names(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse values that are not MODULE:NAME."""
    return tuple(name for value in values if (name := check_function_name(context, parameter, value)) is not None)


def _imported(column: FunctionLookup, name: str) -> ModuleType:
    here = _add_folder_to_path()
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the answer only
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(column, name, error) from error  # the module exists; one that it imports does not
        raise CommandError(
            f"the module {name!r}, which has the function of column {column.name!r}, cannot be found from {here}",
            hint="run this in the folder of the module, add that folder to PYTHONPATH, or use --udf MODULE:NAME",
            column=column.name,
            module=name,
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(column, name, error) from error


def _add_folder_to_path() -> str:
    """Put this folder on the module search path, and return it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def _import_failed(column: FunctionLookup, name: str, error: BaseException) -> CommandError:
    return CommandError(
        f"the module {name!r}, which has the function of column {column.name!r}, cannot be imported:"
        f" {_error_text(error)}",
        hint="correct the module so that its import succeeds, or name another: --udf MODULE:NAME",
        column=column.name,
        module=name,
    )


def _error_text(error: BaseException) -> str:
    """An error and the line of the user's code that raised it."""
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError):
        return f"{said} ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else said


def _attribute_at(column: FunctionLookup, module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        if (found := getattr(found, name, None)) is None:
            raise _function_missing(column, module, f"has no {path!r}")
    return found


def _udf_of_same_name(column: FunctionLookup, module: ModuleType) -> Any:
    """The udf of the module that has the name of the column's function."""
    from floodmark.functions.udf import Udf

    for value in vars(module).values():
        if isinstance(value, Udf) and value.name == column.function.name:
            return value
    raise _function_missing(column, module, f"no longer has the udf {column.function.name!r}")


def _function_missing(column: FunctionLookup, module: ModuleType, what: str) -> CommandError:
    from floodmark.functions.udf import Udf

    udfs = [name for name, value in vars(module).items() if isinstance(value, Udf)]
    there = f"its udfs are {', '.join(udfs)}" if udfs else "it has no udfs"
    return CommandError(
        f"the module {module.__name__!r} {what}, which computes column {column.name!r}",
        hint=f"{there}; name the function: --udf MODULE:NAME",
        column=column.name,
        module=module.__name__,
    )


def _check_version(found: Any, column: FunctionLookup, named: str) -> Udf:
    from floodmark.functions.udf import Udf

    module, _, name = named.partition(":")
    if not isinstance(found, Udf):
        raise CommandError(
            f"{named} is not a udf",
            hint='put @floodmark.udf(returns="…") before it',
            column=column.name,
            module=module,
        )
    if found.version != column.function.version:
        new, old = (output.shorten_version(version) for version in (found.version, column.function.version))
        versions = f"its version is {new}, the column's {old}"
        raise CommandError(
            f"the function {module}.{name} changed since column {column.name!r} was added: {versions}",
            hint=f"{column.redefine_hint(f'{module}.{name}')}; or restore the old function",
            column=column.name,
            version=found.version,
        )
    return found


def parse_since(_: click.Context, __: click.Parameter, value: str | None) -> int | Position | None:
    """An offset, or a position as `Dataset.position()` and `changes --json` write it."""
    from floodmark.errors import BadPosition
    from floodmark.ledger.position import Position

    if value is None:
        return None
    try:
        offset = int(value)
    except ValueError:
        try:
            return Position.parse(value)
        except BadPosition as error:
            raise click.BadParameter(f"{error.message}; give an offset, or the position of an answer.") from error
    if offset < -1:
        raise click.BadParameter(f"{offset} is not an offset: they begin at 0, and -1 is before the first.")
    return offset


KeyTexts = list[dict[str, str]]
"""Keys as text, each as a dict by column."""


def parse_keys(arguments: Sequence[str]) -> KeyTexts:
    """The keys in COLUMN=VALUE arguments. A repeated column begins the next key."""
    keys: KeyTexts = [{}]
    for argument in arguments:
        column, equals, text = argument.partition("=")
        if not equals or not column:
            raise click.UsageError(f"{argument!r} is not COLUMN=VALUE, such as id=7.")
        if column in keys[-1]:
            keys.append({})
        keys[-1][column] = text
    if any(set(key) != set(keys[0]) for key in keys):
        raise click.UsageError(f"every key must name the same columns as the first: {', '.join(keys[0])}.")
    return keys


def cast_keys(keys: KeyTexts, dataset: Dataset) -> pa.Table | None:
    """The keys as a table of the dataset's types; None if the dataset has no columns yet."""
    import pyarrow as pa

    key, name = dataset.strategy.key, dataset.name
    if not key:
        raise CommandError(
            f"dataset {name!r} has no key: every record is a new row",
            hint=f"see the records with `floodmark changes {name}`, or create another dataset with a key: "
            "`floodmark ingest NEW PATH --key COLUMN`",
            name=name,
        )
    for column in keys[0]:
        if column not in key:
            raise CommandError(
                f"{column!r} is not a key column of {name!r}",
                hint=f"its key is {', '.join(key)}: give {' '.join(f'{c}=…' for c in key)}",
                name=name,
            )
    if (layout := dataset.snapshot().layout) is None:
        return None
    # Among all columns, because the key columns of a view may be hidden.
    columns = {c: _parse_array([given[c] for given in keys], layout.data.field(c)) for c in keys[0]}
    return pa.table(columns)


def format_keys(keys: KeyTexts) -> str:
    """The keys as text for messages: ``id=7, day=2026-11-16 or id=8, day=2026-11-16``."""
    return " or ".join(", ".join(f"{column}={text}" for column, text in key.items()) for key in keys)


def _parse_array(texts: list[str], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    return pa.array(parse_values(texts, field), field.type)


def parse_values(texts: Sequence[str], field: pa.Field) -> list[Any]:
    """Parse values of a key column."""
    return [_parse_value(text, field) for text in texts]


def _parse_value(text: str, field: pa.Field) -> Any:
    import pyarrow as pa

    t: Any = field.type
    try:
        if pa.types.is_timestamp(t):
            return pa.scalar(_parse_time(text, t), t).as_py()
        if pa.types.is_time(t):
            return time.fromisoformat(text)
        if pa.types.is_binary(t):
            return bytes.fromhex(text)
        return pa.scalar(text, pa.string()).cast(t).as_py()
    except (ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CommandError(
            f"{text!r} does not fit the key column {field.name!r}, which is {t}",
            hint=f"write it like {field.name}={_example_value(t)}",
            column=field.name,
        ) from error


def _parse_time(text: str, timestamp: Any) -> datetime:
    """A time for a column: with a zone if the column has one, else without."""
    moment = datetime.fromisoformat(text)
    if (timestamp.tz is None) != (moment.tzinfo is None):
        raise ValueError("the time must have a zone if the column has one, else none")
    return moment


def _example_value(t: Any) -> str:
    import pyarrow as pa

    examples = {
        pa.types.is_integer: "7",
        pa.types.is_floating: "2.5",
        pa.types.is_decimal: "2.50",
        pa.types.is_boolean: "true",
        pa.types.is_date: "2026-11-16",
        pa.types.is_time: "08:30:00",
        pa.types.is_binary: "00ff (hexadecimal)",
    }
    if pa.types.is_timestamp(t):
        return "2026-11-16T08:30:00" if t.tz is None else "2026-11-16T08:30:00Z"
    return next((example for fits, example in examples.items() if fits(t)), "…")


def column_names_option(name: str, description: str, metavar: str = "COLUMN") -> Callable[[F], F]:
    """An option that takes column names: it can be repeated, and each value may have several, separated by commas."""
    return click.option(name, metavar=metavar, multiple=True, callback=_split_column_names, help=description)


def _split_column_names(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    columns = tuple(column for value in values for column in value.split(","))
    if not all(columns):
        raise click.BadParameter("a column name is empty.")
    return columns
