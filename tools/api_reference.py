"""Write the API reference: all public names with signatures and docstrings, as Markdown pages."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import floodmark
from floodmark.dataset import Dataset
from floodmark.errors import FloodmarkError
from floodmark.view import View
from markdown_text import escaped, table

WIDTH = 96


@dataclass(frozen=True)
class Page:
    """A page of the reference: its file name, title, first paragraph, and the public names on it."""

    slug: str
    title: str
    first: str
    names: tuple[str, ...]


PAGES = (
    Page(
        "lake",
        "Lake",
        "The entry point: a folder or a bucket with datasets.",
        ("Lake", "Runtime", "BackupReport", "RestorePlan"),
    ),
    Page(
        "datasets",
        "Datasets",
        "What `lake.create` and `lake[name]` return, and what its methods return. A pipeline declares datasets with "
        "[DatasetSpec](pipelines.md#datasetspec).",
        ("Dataset", "Position", "Commit", "FoldReport", "PurgeReport", "EraseReport", "VerifyReport", "LogEntry"),
    ),
    Page(
        "columns",
        "Computed columns",
        "Functions for columns. `add_column`, `backfill` and the rest are methods of [datasets](datasets.md).",
        ("udf", "Udf", "Retry", "Skip", "BackfillReport", "BackfillPlan"),
    ),
    Page(
        "transforms",
        "Transforms",
        "Steps: what they read and write, how they handle errors, and what a run returns.",
        (
            *("BatchTransform", "InputSpec", "Required", "OutputSpec", "OnError", "RunPlan", "RunReport"),
            *("StepStatus", "DatatableTransform", "BatchGenerate", "UpdateExternalTable", "ExternalTable"),
        ),
    ),
    Page(
        "views",
        "Views",
        "What `lake.view` returns: a [dataset](datasets.md) with a query. A pipeline declares views with "
        "[ViewSpec](pipelines.md#viewspec).",
        ("View", "RefreshPlan", "RefreshReport"),
    ),
    Page(
        "pipelines",
        "Pipelines",
        "What a `pipeline.py` declares, and what a run of it returns.",
        ("Pipeline", "DatasetSpec", "Source", "ColumnSpec", "ViewSpec", "sql_views", "PipelineReport"),
    ),
    Page("spark", "Spark", "Datasets in any Spark job: the data source `floodmark`.", ("register", "stream_sink")),
    Page(
        "errors",
        "Errors",
        "Every error derives from `FloodmarkError`. Errors that programs often handle come first.",
        (
            "FloodmarkError",
            "CommitConflict",
            "CommitUnknown",
            "NothingToWrite",
            "RecordsPurged",
            "RunFailed",
            "UnknownDataset",
            "BadPipeline",
            "BadPosition",
        ),
    ),
)
# Users get these from a lake, so the reference does not show their constructors.
FROM_A_LAKE = (Dataset, View)


def write_page(page: Page) -> str:
    """One page as Markdown."""
    parts = [f"# {page.title}", page.first]
    for name in page.names:
        parts.extend(_of_name(name))
    if page.slug == "errors":
        parts.extend(_all_errors())
    return "\n\n".join(parts) + "\n"


def undocumented() -> list[str]:
    """The public names, and public members of public classes, without a docstring."""
    things = {**{name: getattr(floodmark, name) for page in PAGES for name in page.names}}
    found = [name for name, thing in things.items() if not _own_words(thing)]
    for name, thing in things.items():
        if isinstance(thing, type):
            found.extend(f"{name}.{one.name}" for one in _members(thing) if not one.words)
    return found


@dataclass(frozen=True)
class _Member:
    name: str
    call: Callable[..., Any] | None  # none: a property
    words: str
    type: str = ""


def _of_name(name: str) -> list[str]:
    thing = getattr(floodmark, name)
    anchor = name.lower() if name != "Udf" else "class-udf"  # the function `udf` has the other anchor
    if isinstance(thing, type):
        return _of_class(name, thing, anchor)
    return [f"({anchor})=\n## {name}", _code(name, thing), _prose(_own_words(thing))]


def _of_class(name: str, thing: type, anchor: str) -> list[str]:
    parts = [f"({anchor})=\n## {name}"]
    if issubclass(thing, FloodmarkError) and thing is not FloodmarkError:
        bases = (base.__name__ for base in thing.__mro__[1:] if issubclass(base, FloodmarkError))
        parts.append(f"Derived from {', '.join(f'`{base}`' for base in bases)}.")
    elif thing not in FROM_A_LAKE:
        parts.append(_code(name, thing))
    parts.append(_prose(_own_words(thing)))
    for member in _members(thing):
        parts.append(f"### {name}.{member.name}")
        shown = _code(member.name, member.call) if member.call else f"```py\n{member.name}: {member.type}\n```"
        parts.append(shown)
        parts.append(_prose(member.words))
    return parts


def _members(thing: type) -> Iterator[_Member]:
    """The public methods and properties that Floodmark defines, in source order. The class itself comes first."""
    seen = {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    for owner in thing.__mro__:
        if not owner.__module__.startswith("floodmark") or _is_documented_elsewhere(owner, thing):
            continue
        for name in vars(owner):
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            raw = inspect.getattr_static(thing, name)  # as defined, not bound
            if isinstance(raw, property | cached_property):
                getter = raw.fget if isinstance(raw, property) else raw.func
                answer = inspect.get_annotations(getter).get("return", "") if getter else ""
                yield _Member(name, None, _words_of_member(thing, name), _type_text(answer))
            elif isinstance(raw, classmethod | staticmethod):
                yield _Member(name, raw.__get__(None, thing), _words_of_member(thing, name))  # bound: without cls
            elif inspect.isfunction(raw):
                yield _Member(name, raw, _words_of_member(thing, name))


def _is_documented_elsewhere(owner: type, thing: type) -> bool:
    """Whether inherited members are documented with their base class: those of Dataset and FloodmarkError."""
    return owner is not thing and any(
        issubclass(thing, base) and thing is not base and issubclass(base, owner) for base in (Dataset, FloodmarkError)
    )


def _words_of_member(thing: type, name: str) -> str:
    """A member's docstring. An overriding member without one inherits it."""
    meant = (vars(owner)[name] for owner in thing.__mro__ if name in vars(owner))
    return next((words for one in meant if (words := _own_words(one))), "")


def _own_words(thing: Any) -> str:
    """A docstring, without inherited ones and those that Python generates for dataclasses."""
    words = thing.__doc__ or ""
    return "" if words.startswith(f"{getattr(thing, '__name__', '')}(") else inspect.cleandoc(words)


def _code(name: str, thing: Callable[..., Any]) -> str:
    return f"```py\n{signature_text(name, thing)}\n```"


def signature_text(name: str, thing: Callable[..., Any]) -> str:
    """A signature as source text, in one line if it is short enough."""
    # The signature of a class is its own, not that of a function that its instances wrap.
    signature = inspect.signature(thing, follow_wrapped=not isinstance(thing, type))
    shown = []
    only_by_name = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            only_by_name = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and not only_by_name:
            only_by_name = True
            shown.append("*")
        shown.append(_parameter_text(parameter))
    answer = signature.return_annotation
    makes = "" if isinstance(thing, type) or answer is inspect.Signature.empty else f" -> {_type_text(answer)}"
    line = f"{name}({', '.join(shown)}){makes}"
    if len(line) <= WIDTH:
        return line
    rows = "".join(f"    {one},\n" for one in shown)
    return f"{name}(\n{rows}){makes}"


def _parameter_text(parameter: inspect.Parameter) -> str:
    text = str(parameter).partition(parameter.name)[0] + parameter.name  # with its stars
    typed = parameter.annotation is not inspect.Parameter.empty
    if typed:
        text += f": {_type_text(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {_default_text(parameter.default)}" if typed else f"={_default_text(parameter.default)}"
    return text


def _type_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))


def _default_text(value: Any) -> str:
    """A default as source text; `…` if it has none, like a function or a dataclass factory."""
    text = repr(value)
    return "…" if text.startswith("<") else text


def _all_errors() -> list[str]:
    """A table of all error classes, each with the first paragraph of its docstring."""
    for module in pkgutil.walk_packages(floodmark.__path__, "floodmark."):
        if module.name.endswith(".errors"):
            importlib.import_module(module.name)
    found: dict[tuple[str, str], str] = {}
    waiting: list[type] = [FloodmarkError]
    while waiting:
        error = waiting.pop()
        waiting.extend(error.__subclasses__())
        if not error.__name__.startswith("_") and error.__module__.startswith("floodmark"):
            where = error.__module__.removeprefix("floodmark.")
            found[error.__name__, where] = _own_words(error).partition("\n\n")[0].replace("\n", " ")
    rows = [(f"`{name}`", f"`{where}`", escaped(words)) for (name, where), words in sorted(found.items())]
    return ["## All errors", table(("error", "module", "meaning"), rows)]


def _prose(words: str) -> str:
    """A docstring as Markdown: keep paragraphs and code in backticks, escape the rest."""
    return "\n\n".join(escaped(part) for part in re.split(r"\n\s*\n", words))
