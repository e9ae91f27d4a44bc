"""Finding the function of a column again: its module is imported as Python would import it in this folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import words
from floodmark.cli.errors import NoFunction, OtherVersion

if TYPE_CHECKING:
    from floodmark.compute.functions.udf import Udf
    from floodmark.compute.stored.catalog import FunctionRef

# Modules that only one process has: a script, a notebook, what was typed.
_NOWHERE = ("", "__main__", "__mp_main__")


@dataclass(frozen=True)
class Sought:
    """The function of a column, of a dataset or a view; `retake` says how to have it as it is now, given its name."""

    name: str
    function: FunctionRef
    retake: Callable[[str], str]


def find_function(column: Sought, named: str | None, mark: Path | None) -> Udf:
    """The function that computes a column: from the module where it was defined, or the one that `named` names.

    `mark` is a folder of the lake, if that is a folder: who may write data must not thereby choose what is run.
    """
    from floodmark.compute.functions.udf import known

    reference = column.function
    if named is not None:
        module_name, _, path = named.partition(":")
        return _checked(_attribute(column, _imported(column, module_name), path), column, named)
    if reference.module in _NOWHERE:
        raise NoFunction(
            f"the function {reference.qualname!r} of column {column.name!r} was defined in a script or a notebook,"
            " which cannot be imported",
            hint=f"put it into a module of its own and name it: --udf MODULE:{reference.qualname}",
            column=column.name,
            module=reference.module,
        )
    if mark is not None:
        _refuse_from(mark.parent, column, reference.module)
    module = _imported(column, reference.module)
    if (found := known(reference.name, reference.version)) is not None:
        return found
    return _checked(_same_name(column, module), column, f"{reference.module}:{reference.qualname}")


def _refuse_from(lake: Path, column: Sought, name: str) -> None:
    """Refuse a module that lies in the lake itself, before any of it is imported."""
    _look_here()
    spec = importlib.util.find_spec(name.partition(".")[0])
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    if any(p is not None and Path(p).resolve().is_relative_to(lake.resolve()) for p in places):
        raise NoFunction(
            f"the module {name!r} that the lake names for column {column.name!r} lies in the lake itself",
            hint="code belongs elsewhere; if you trust this one, name it: --udf MODULE:NAME",
            column=column.name,
            module=name,
        )


def check_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse what cannot be a module and a name in it."""
    if value is None:
        return None
    module, _colon, name = value.partition(":")
    if module.endswith(".py") or "/" in module:
        raise click.BadParameter(f"name the module, not its file: {Path(module).stem}:{name or 'NAME'}.")
    if not module or not name:
        raise click.BadParameter("write it as MODULE:NAME, such as features.images:brightness.")
    return value


def check_names(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The same for several."""
    return tuple(name for value in values if (name := check_name(context, parameter, value)) is not None)


def _imported(column: Sought, name: str) -> ModuleType:
    here = _look_here()
    try:
        with redirect_stdout(sys.stderr):  # what a module prints must not end up in our answer
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(column, name, error) from error  # it is there, and lacks another one
        raise NoFunction(
            f"the module {name!r}, which has the function of column {column.name!r}, is not found from {here}",
            hint="run this in the folder that has it, put that on PYTHONPATH, or name the function: --udf MODULE:NAME",
            column=column.name,
            module=name,
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(column, name, error) from error


def _look_here() -> str:
    """Have modules of this folder found; the folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def _broken(column: Sought, name: str, error: BaseException) -> NoFunction:
    return NoFunction(
        f"the module {name!r}, which has the function of column {column.name!r}, cannot be imported: {_said(error)}",
        hint="importing it must work and end: mend it, or name the function elsewhere: --udf MODULE:NAME",
        column=column.name,
        module=name,
    )


def _said(error: BaseException) -> str:
    """An error and the line of the user's that it came from."""
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError):
        return f"{said} ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else said


def _attribute(column: Sought, module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        if (found := getattr(found, name, None)) is None:
            raise _not_there(column, module, f"has no {path!r}")
    return found


def _same_name(column: Sought, module: ModuleType) -> Any:
    """The udf that has taken the place of the column's, if there is one."""
    from floodmark.compute.functions.udf import Udf

    for value in vars(module).values():
        if isinstance(value, Udf) and value.name == column.function.name:
            return value
    raise _not_there(column, module, f"has no udf {column.function.name!r} any more")


def _not_there(column: Sought, module: ModuleType, what: str) -> NoFunction:
    from floodmark.compute.functions.udf import Udf

    udfs = [name for name, value in vars(module).items() if isinstance(value, Udf)]
    there = f"its udfs are {', '.join(udfs)}" if udfs else "it has none"
    return NoFunction(
        f"the module {module.__name__!r} {what}, which column {column.name!r} is computed by",
        hint=f"{there}; --udf MODULE:NAME names where it is now",
        column=column.name,
        module=module.__name__,
    )


def _checked(found: Any, column: Sought, named: str) -> Udf:
    from floodmark.compute.functions.udf import Udf

    module, _, name = named.partition(":")
    if not isinstance(found, Udf):
        raise NoFunction(
            f"{named} is no udf",
            hint='put @floodmark.udf(returns="…") before it',
            column=column.name,
            module=module,
        )
    if found.version != column.function.version:
        versions = f"its version is {words.short(found.version)}, the column's {words.short(column.function.version)}"
        raise OtherVersion(
            f"{module}.{name} is another function now than the one that column {column.name!r} was given: {versions}",
            hint=f"{column.retake(f'{module}.{name}')}; else bring the old one back",
            column=column.name,
            version=found.version,
        )
    return found
