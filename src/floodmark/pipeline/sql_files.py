"""`sql_views`: a folder of .sql files as the views of a pipeline, one view per file.

A file has one query. A comment block at its top may have options, one per line: `-- refresh: incremental`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floodmark.errors import BadPipelineFile, CodeLocation, FloodmarkError, close_matches
from floodmark.pipeline.declarations import ViewSpec
from floodmark.pipeline.pipeline import Pipeline
from floodmark.transforms.step import find_caller

_OPTION = re.compile(r"--\s*([a-z_]+)\s*:\s*(.*)")
_GLOB = frozenset("*?[")


@dataclass(frozen=True)
class SqlFile:
    """A .sql file: its query, and the options in the comment block at its top."""

    path: Path
    query: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the view: that of the file."""
        return self.path.stem

    def error(self, problem: str, hint: str, line: int = 1) -> BadPipelineFile:
        """An error in a line of the file."""
        where = CodeLocation(str(self.path), line)
        return BadPipelineFile(f"{where}: {problem}", hint=hint, path=where.file, line=line)


@dataclass(frozen=True)
class FileViewSpec(ViewSpec):
    """A view that a file declares. Its errors name the file."""

    file: SqlFile | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.file is not None
        object.__setattr__(self, "place", CodeLocation(str(self.file.path), 1))

    def open(self, lake: Any) -> Any:
        try:
            return super().open(lake)
        except FloodmarkError as error:
            assert self.file is not None
            raise _named_in(self.file, error) from error


def sql_views(files: str | Sequence[str]) -> list[ViewSpec]:
    """The views of .sql files, each named after its file, in the order of what they read.

    `files` is a path or glob, or several, relative to the file that calls this. The first lines of a file may be
    comments with options, such as `-- refresh: incremental`, `-- description: …` and `-- labels: team=sales`.
    """
    by_name: dict[str, SqlFile] = {}
    for file in map(read_sql_file, _matching(files, _caller_folder())):
        other = by_name.setdefault(file.name, file)
        if other is not file:
            raise file.error(f"the view {file.name!r} is also declared by {other.path}", "rename one of the files")
    specs = {name: _spec(file) for name, file in by_name.items()}
    return [specs[name] for name in Pipeline(specs.values()).graph().order]


def _spec(file: SqlFile) -> ViewSpec:
    try:
        return FileViewSpec(file.name, sql=file.query, file=file, **file.options)
    except FloodmarkError as error:
        raise _named_in(file, error) from error


def _named_in(file: SqlFile, error: FloodmarkError) -> FloodmarkError:
    """The same error, with the name of the file."""
    return type(error)(f"{file.path}: {error.message}", hint=error.hint, **error.facts)


# Finding files


def _caller_folder() -> Path:
    caller = find_caller()
    file = None if caller is None else Path(caller.file)
    return Path.cwd() if file is None or not file.is_file() else file.resolve().parent


def _matching(files: str | Sequence[str], folder: Path) -> list[Path]:
    """The files that match, each once, in the order of their paths."""
    patterns = [files] if isinstance(files, str) else list(files)
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = _matches(folder, pattern)
        if not paths:
            raise BadPipelineFile(
                f"sql_views: no file matches {pattern!r} in {folder}",
                hint="name .sql files relative to the file that calls sql_views: sql_views('views/*.sql')",
                path=str(folder),
                line=None,
            )
        found |= dict.fromkeys(paths)
    return sorted(found)


def _matches(folder: Path, pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if not _GLOB & set(pattern):
        return [folder / path] if (folder / path).is_file() else []
    base = Path(path.anchor) if path.is_absolute() else folder
    return [one for one in base.glob(str(path.relative_to(path.anchor))) if one.is_file()]


# Reading a file


def read_sql_file(path: Path) -> SqlFile:
    """Read a file; `BadPipelineFile` with its name and line if an option is unknown or wrong."""
    file = SqlFile(path, "", {})
    try:
        text = path.read_text("utf-8-sig")  # without the byte order mark that some editors write
    except UnicodeDecodeError as error:
        problem = f"{path} is not UTF-8 text (byte {error.start})"
        raise BadPipelineFile(problem, hint="save it as UTF-8", path=str(path), line=None) from error
    options: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for line, content in enumerate(text.splitlines(), 1):
        if not content.startswith("--"):
            break
        if (match := _OPTION.fullmatch(content.strip())) is None:
            continue
        name, value = match[1], match[2].strip()
        if name not in _OPTIONS:
            raise file.error(f"unknown option {name!r}", _unknown_hint(name), line)
        if name in options:
            raise file.error(f"{name!r} is given twice, first in line {lines[name]}", "keep one of them", line)
        try:
            options[name] = _OPTIONS[name](value)
        except ValueError as error:
            raise file.error(f"{name}: {error}", _HINTS[name], line) from error
        lines[name] = line
    return SqlFile(path, text, options)


def _unknown_hint(name: str) -> str:
    near = close_matches(name, _OPTIONS)
    known = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(_OPTIONS)}"
    return f"{known} (put a comment that is no option below an empty line)"


def _policy(value: str) -> str:
    if value != "incremental":
        raise ValueError(f"{value!r} is not known")
    return value


def _text(value: str) -> str:
    if not value:
        raise ValueError("it has no text")
    return value


def _labels(value: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in value.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError(f"{value!r} is not a list of NAME=VALUE")
    return {name.strip(): text.strip() for name, _, text in pairs}


_OPTIONS: Mapping[str, Callable[[str], Any]] = {"refresh": _policy, "description": _text, "labels": _labels}
_HINTS = {
    "refresh": "write `-- refresh: incremental`, or leave it out",
    "description": "write the text in the same line, or leave it out",
    "labels": "write `-- labels: NAME=VALUE, NAME=VALUE`, or leave it out",
}
