"""A project: its floodmark.toml, and loading the Python file that declares its pipeline."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, fields
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from floodmark.errors import BadPipelineFile, CodeLocation, FloodmarkError, NoPipeline, UnreadableToml, close_matches

if TYPE_CHECKING:
    from floodmark.pipeline.pipeline import Pipeline

TOML_NAME = "floodmark.toml"
DEFAULT_FILE = "pipeline.py"
VARIABLE = "pipeline"


@dataclass(frozen=True)
class PipelineFile:
    """The Python file that declares a pipeline, and how it was chosen, as the end of a sentence."""

    path: Path
    origin: str


def load_pipeline(place: str | Path = ".") -> Pipeline:
    """Load the pipeline of a project, given by a folder in it, its floodmark.toml, or a Python file.

    Each call runs the file again. Modules in its folder can be imported by name. Its output goes to stderr.
    """
    return run_file(find_file(place))


# Finding the file


def find_file(place: str | Path = ".") -> PipelineFile:
    """Find the pipeline file: the one that the nearest floodmark.toml names, or a pipeline.py next to it."""
    path = Path(place).expanduser().absolute()
    if path.suffix == ".py":
        return _require_file(PipelineFile(path, "named directly"))
    if path.is_file():
        return _require_file(
            _file_named_by(path) or PipelineFile(path.parent / DEFAULT_FILE, f"by default, next to {path}")
        )
    if not path.is_dir():
        raise NoPipeline(
            f"{path} does not exist", hint="name a folder, a floodmark.toml or a Python file", path=str(path)
        )
    for folder in (path, *path.parents):
        if (toml := folder / TOML_NAME).is_file():
            if (named := _file_named_by(toml)) is not None:
                return _require_file(named)
            if (folder / DEFAULT_FILE).is_file():
                return PipelineFile(folder / DEFAULT_FILE, f"by default, next to {toml}")
    if (path / DEFAULT_FILE).is_file():
        return PipelineFile(path / DEFAULT_FILE, "by default")
    raise NoPipeline(
        f"no pipeline found for {path}: it has no {DEFAULT_FILE}, and no {TOML_NAME} in it or above names one",
        hint=f'put pipeline = "{DEFAULT_FILE}" into a {TOML_NAME}, and `pipeline = Pipeline([…])` into that file',
        path=str(path),
    )


def _file_named_by(toml: Path) -> PipelineFile | None:
    """The file that a floodmark.toml names, relative to its folder; None if it names none."""
    try:
        content = tomllib.loads(toml.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPipelineFile(
            f"{toml} cannot be read: {error}", hint="fix the file", path=str(toml), line=None
        ) from error
    if (named := content.get(VARIABLE)) is None:
        return None
    if not isinstance(named, str) or not named.endswith(".py"):
        raise BadPipelineFile(
            f"`{VARIABLE}` in {toml} is {named!r}, not a Python file",
            hint=f'name a Python file, relative to {TOML_NAME}: {VARIABLE} = "{DEFAULT_FILE}"',
            path=str(toml),
            line=None,
        )
    return PipelineFile(toml.parent / Path(named).expanduser(), f"named by {toml}")


def _require_file(file: PipelineFile) -> PipelineFile:
    if file.path.is_file():
        return file
    raise NoPipeline(
        f"{file.path} {'is not a file' if file.path.exists() else 'does not exist'} (it is the pipeline {file.origin})",
        hint=f"create it with `{VARIABLE} = Pipeline([…])` in it, or name another file in {TOML_NAME}",
        path=str(file.path),
    )


# Running the file


def run_file(file: PipelineFile) -> Pipeline:
    """Run a pipeline file and return its pipeline. Errors have the file and line."""
    with _load_lock:
        return _pipeline_of(_import_file(file.path.resolve()), file.path)


_load_lock = threading.RLock()  # all threads of a process share its imported modules
_project_modules: set[str] = set()
"""The modules that the last pipeline imported; they are removed when the next one is loaded."""
_import_folders: list[str] = []


class _UncachedLoader(SourceFileLoader):
    """Compiles the current file, because cached bytecode would miss a change within the same second."""

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _import_file(path: Path) -> ModuleType:
    root, name = _module_name(path)
    with _imports_from(root):
        if name in sys.modules and _file_of(sys.modules[name]) != path:  # another module has the name, such as queue.py
            name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        linecache.checkcache()
        spec = importlib.util.spec_from_loader(name, _UncachedLoader(name, str(path)), origin=str(path))
        assert spec is not None
        spec.has_location = True
        module = importlib.util.module_from_spec(spec)
        with _locate_errors(path), redirect_stdout(sys.stderr):  # its output must not mix with the command's output
            if (package := name.rpartition(".")[0]) and package not in sys.modules:
                importlib.import_module(package)
            sys.modules[name] = module
            assert spec.loader is not None
            spec.loader.exec_module(module)
    return module


def _module_name(path: Path) -> tuple[Path, str]:
    """The folder to import from, and the module's name; a file in a package is a module of the package."""
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


@contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Make the modules of a folder importable, now and when steps run; remove those of the last pipeline."""
    for name in _project_modules:
        sys.modules.pop(name, None)
    for added in _import_folders:
        if added in sys.path:
            sys.path.remove(added)
    _project_modules.clear()
    _import_folders.clear()
    before = set(sys.modules)
    if str(folder) not in sys.path:
        _import_folders.append(str(folder))
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if (file := _file_of(sys.modules[name])) is not None and file.is_relative_to(folder):
                _project_modules.add(name)


def _file_of(module: ModuleType) -> Path | None:
    file = vars(module).get("__file__")  # getattr would load a lazy module
    return Path(file).resolve() if isinstance(file, str) else None


@contextmanager
def _locate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except SyntaxError as error:
        raise _file_error(f"{error.msg}", error.filename or str(path), error.lineno, "fix the syntax") from error
    except SystemExit as error:
        problem = f"it ends the program: {_last_line(error)}"
        hint = 'move code that must not run on import under `if __name__ == "__main__":`'
        raise _file_error(problem, *_error_location(error, path), hint) from error
    except BadPipelineFile:  # it names its file
        raise
    except FloodmarkError as error:
        raise _file_error(error.message, *_error_location(error, path), error.hint) from error
    except ImportError as error:
        hint = "import modules in the folder of the pipeline file by name: `import features`"
        raise _file_error(_last_line(error), *_error_location(error, path), hint) from error
    except Exception as error:
        raise _file_error(
            _last_line(error), *_error_location(error, path), "fix the error: the file must load"
        ) from error


def _file_error(problem: str, file: str, line: int | None, hint: str) -> BadPipelineFile:
    where = file if line is None else f"{file}, line {line}"
    return BadPipelineFile(f"{where}: {problem}", hint=hint, path=file, line=line)


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _error_location(error: BaseException, path: Path) -> tuple[str, int | None]:
    """The location of the wrong declaration, or else of the innermost user code that raised the error."""
    if isinstance(error, FloodmarkError) and isinstance(place := error.facts.get("place"), CodeLocation):
        return place.file, place.line
    folder = _module_name(path)[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(folder) and "site-packages" not in f.filename]
    return (own[-1].filename, own[-1].lineno) if own else (str(path), None)


def _pipeline_of(module: ModuleType, path: Path) -> Pipeline:
    from floodmark.pipeline.pipeline import Pipeline

    pipeline: Any = vars(module).get(VARIABLE)
    if isinstance(pipeline, Pipeline):
        return pipeline
    others = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
    if pipeline is None and others:
        problem, hint = f"has no `{VARIABLE}`, but `{others[0]}`", f"rename it to `{VARIABLE}`"
    elif pipeline is None:
        problem, hint = f"has no `{VARIABLE}`", f"end the file with `{VARIABLE} = Pipeline([…])`"
    else:
        problem = f"has a `{VARIABLE}` that is a {type(pipeline).__qualname__}, not a Pipeline"
        hint = f"write `{VARIABLE} = Pipeline([…])`, with `from floodmark import Pipeline`"
    raise BadPipelineFile(f"{path} {problem}", hint=hint, path=str(path), line=None)


# Settings

_ENTRIES = ("lake", "pipeline", "defaults", "spark")


@dataclass(frozen=True)
class ProjectDefaults:
    """The [defaults] of a project.

    `workers` nodes run at the same time. A checkpoint takes about `checkpoint_seconds`. A keyed dataset is folded after
    a write when the fraction `fold_at` of its records is dead.
    """

    workers: int | None = None
    checkpoint_seconds: float | None = None
    fold_at: float | None = None


@dataclass(frozen=True)
class ProjectSettings:
    """The settings of a project. The Spark settings have their full names: spark.master, spark.driver.memory, …"""

    spark: Mapping[str, str] = field(default_factory=dict)
    defaults: ProjectDefaults = field(default_factory=ProjectDefaults)


def load_settings(folder: Path) -> ProjectSettings:
    """The settings for a folder: those of the nearest floodmark.toml, in it or above, that has any."""
    for parent in (folder, *folder.parents):
        if (path := parent / TOML_NAME).is_file():
            content = _content(path)
            if "spark" in content or "defaults" in content:
                return ProjectSettings(
                    _spark(path, content.get("spark", {})), _defaults(path, content.get("defaults", {}))
                )
    return ProjectSettings()


def _content(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problem = f"{path} cannot be read: {error}"
        raise UnreadableToml(problem, hint="fix the file", path=str(path), line=None) from error
    if (unknown := find_unknown_entry(content)) is not None:
        raise _toml_error(path, *unknown)
    return content


def find_unknown_entry(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """The problem and the hint for an unknown entry of a floodmark.toml; None if all entries are known.

    Otherwise a mistyped `lake` would be ignored, and data would be written to another lake.
    """
    for name in content:
        if name not in _ENTRIES:
            near = close_matches(name.lower(), _ENTRIES)
            hint = f"did you mean {near[0]!r}?" if near else f"the entries are {', '.join(_ENTRIES)}"
            return f"unknown entry {name!r}", hint
    return None


def _spark(path: Path, given: Any) -> dict[str, str]:
    """The settings by their full names; executor.memory and "spark.executor.memory" in [spark] are the same."""
    if not isinstance(given, Mapping):
        raise _toml_error(
            path, f"`spark` is {given!r}, not a table", 'write a [spark] table, and in it "spark.master" = "local[4]"'
        )
    settings: dict[str, str] = {}
    for name, value in _flat("", given):
        if not isinstance(value, str | int | float):
            raise _toml_error(
                path, f"the setting {name!r} of [spark] is {value!r}", "give text, a number, true or false"
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        settings[name if name.startswith("spark.") else f"spark.{name}"] = text
    return settings


def _flat(before: str, given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in given.items():
        full = f"{before}.{name}" if before else name
        pairs += _flat(full, value) if isinstance(value, Mapping) else [(full, value)]
    return pairs


def _defaults(path: Path, given: Any) -> ProjectDefaults:
    known = [one.name for one in fields(ProjectDefaults)]
    if not isinstance(given, Mapping):
        raise _toml_error(
            path, f"`defaults` is {given!r}, not a table", "write a [defaults] table, and in it workers = 4"
        )
    for name, value in given.items():
        if name not in known:
            near = close_matches(name, known)
            hint = f"did you mean {near[0]!r}?" if near else f"the defaults are {', '.join(known)}"
            raise _toml_error(path, f"[defaults] has no {name!r}", hint)
        types = (int,) if name == "workers" else (int, float)
        if not isinstance(value, types) or isinstance(value, bool) or value <= 0:
            raise _toml_error(
                path,
                f"{name} = {value!r} in [defaults] is not a number above 0",
                "give a positive number, or leave it out",
            )
    return ProjectDefaults(**given)


def _toml_error(path: Path, problem: str, hint: str) -> BadPipelineFile:
    return BadPipelineFile(f"{path}: {problem}", hint=hint, path=str(path), line=None)
