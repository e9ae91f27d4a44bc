"""Loading a pipeline: the nearest floodmark.toml says which Python file declares it."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from floodmark.errors import FloodmarkError
from floodmark.pipeline.errors import BadPipelineFile, NoPipeline
from floodmark.pipeline.pipeline import Pipeline
from floodmark.transform.place import Place

TOML = "floodmark.toml"
DEFAULT = "pipeline.py"
VARIABLE = "pipeline"


@dataclass(frozen=True)
class PipelineFile:
    """The Python file that declares a pipeline, and who said so, as the end of a sentence."""

    path: Path
    origin: str


def load(place: str | Path = ".") -> Pipeline:
    """The pipeline of a project: of a folder in it, of its floodmark.toml, or of a Python file itself.

    The file is run anew at every call, and modules beside it can be imported by name. What it prints goes to stderr.
    """
    return run_file(find_file(place))


# Which file


def find_file(place: str | Path = ".") -> PipelineFile:
    """Which file declares the pipeline: the one that the nearest floodmark.toml names, or a pipeline.py beside it."""
    path = Path(place).expanduser().absolute()
    if path.suffix == ".py":
        return _present(PipelineFile(path, "as asked for"))
    if path.is_file():
        return _present(_named(path) or PipelineFile(path.parent / DEFAULT, f"by default, beside {path}"))
    if not path.is_dir():
        raise NoPipeline(
            f"{path} does not exist", hint="name a folder, a floodmark.toml or a Python file", path=str(path)
        )
    for folder in (path, *path.parents):
        if (toml := folder / TOML).is_file():
            if (named := _named(toml)) is not None:
                return _present(named)
            if (folder / DEFAULT).is_file():
                return PipelineFile(folder / DEFAULT, f"by default, beside {toml}")
    if (path / DEFAULT).is_file():
        return PipelineFile(path / DEFAULT, "by default")
    raise NoPipeline(
        f"there is no pipeline for {path}: neither {DEFAULT} in it, nor a {TOML} in it or above that names one",
        hint=f'put pipeline = "{DEFAULT}" into a {TOML}, and `pipeline = Pipeline([…])` into that file',
        path=str(path),
    )


def _named(toml: Path) -> PipelineFile | None:
    """The file that a floodmark.toml names, relative to where it is; None when it names none."""
    try:
        content = tomllib.loads(toml.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPipelineFile(f"{toml} cannot be read: {error}", hint="mend it", path=str(toml), line=None) from error
    if (named := content.get(VARIABLE)) is None:
        return None
    if not isinstance(named, str) or not named.endswith(".py"):
        raise BadPipelineFile(
            f"`{VARIABLE}` in {toml} is {named!r}, not a Python file",
            hint=f'name one, relative to {TOML}: {VARIABLE} = "{DEFAULT}"',
            path=str(toml),
            line=None,
        )
    return PipelineFile(toml.parent / Path(named).expanduser(), f"named by {toml}")


def _present(file: PipelineFile) -> PipelineFile:
    if file.path.is_file():
        return file
    raise NoPipeline(
        f"{file.path} {'is no file' if file.path.exists() else 'does not exist'} (it is the pipeline {file.origin})",
        hint=f"make it, with `{VARIABLE} = Pipeline([…])` in it, or name another in {TOML}",
        path=str(file.path),
    )


# Running it


def run_file(file: PipelineFile) -> Pipeline:
    """Run a pipeline file and take the pipeline from it; whatever is wrong with it is said with its file and line."""
    with _loading:
        return _pipeline_of(_run(file.path.resolve()), file.path)


_loading = threading.RLock()  # what a process has imported is one for all of its threads
_project: set[str] = set()
"""The modules that the newest pipeline brought: they are forgotten when the next one is loaded."""
_folders: list[str] = []


class _Fresh(SourceFileLoader):
    """Compiles the file as it is now: a cached one is believed to be new within the second it was changed in."""

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _run(path: Path) -> ModuleType:
    root, name = _module_name(path)
    with _imports_from(root):
        if name in sys.modules and _file_of(sys.modules[name]) != path:  # its name is taken, by queue.py say
            name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        linecache.checkcache()
        spec = importlib.util.spec_from_loader(name, _Fresh(name, str(path)), origin=str(path))
        assert spec is not None
        spec.has_location = True
        module = importlib.util.module_from_spec(spec)
        with _explained(path), redirect_stdout(sys.stderr):  # what it prints must not end up in our answer
            if (package := name.rpartition(".")[0]) and package not in sys.modules:
                importlib.import_module(package)
            sys.modules[name] = module
            assert spec.loader is not None
            spec.loader.exec_module(module)
    return module


def _module_name(path: Path) -> tuple[Path, str]:
    """The folder to import from, and the name that the file has there; in a package it is a module of that."""
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


@contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Have modules of a folder found, now and when steps run; those of the pipeline before it are forgotten."""
    for name in _project:
        sys.modules.pop(name, None)
    for added in _folders:
        if added in sys.path:
            sys.path.remove(added)
    _project.clear()
    _folders.clear()
    before = set(sys.modules)
    if str(folder) not in sys.path:
        _folders.append(str(folder))
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if (file := _file_of(sys.modules[name])) is not None and file.is_relative_to(folder):
                _project.add(name)


def _file_of(module: ModuleType) -> Path | None:
    file = vars(module).get("__file__")  # not getattr: that would load a lazy module
    return Path(file).resolve() if isinstance(file, str) else None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except SyntaxError as error:
        raise _broken(f"{error.msg}", error.filename or str(path), error.lineno, "mend it") from error
    except SystemExit as error:
        said = f"it ends the program: {_last_line(error)}"
        hint = 'put what is to run only as a program under `if __name__ == "__main__":`'
        raise _broken(said, *_where(error, path), hint) from error
    except FloodmarkError as error:
        raise _broken(error.message, *_where(error, path), error.hint) from error
    except ImportError as error:
        hint = "modules beside the pipeline file are imported by name: `import features`"
        raise _broken(_last_line(error), *_where(error, path), hint) from error
    except Exception as error:
        raise _broken(_last_line(error), *_where(error, path), "mend it: loading the file must work") from error


def _broken(said: str, file: str, line: int | None, hint: str) -> BadPipelineFile:
    where = file if line is None else f"{file}, line {line}"
    return BadPipelineFile(f"{where}: {said}", hint=hint, path=file, line=line)


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _where(error: BaseException, path: Path) -> tuple[str, int | None]:
    """The line of the declaration that is wrong, else the innermost of the user's own that an error came through."""
    if isinstance(error, FloodmarkError) and isinstance(place := error.facts.get("place"), Place):
        return place.file, place.line
    folder = _module_name(path)[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(folder) and "site-packages" not in f.filename]
    return (own[-1].filename, own[-1].lineno) if own else (str(path), None)


def _pipeline_of(module: ModuleType, path: Path) -> Pipeline:
    found: Any = vars(module).get(VARIABLE)
    if isinstance(found, Pipeline):
        return found
    others = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
    if found is None and others:
        said, hint = f"has no `{VARIABLE}`, but `{others[0]}`", f"call it `{VARIABLE}`"
    elif found is None:
        said, hint = f"has no `{VARIABLE}`", f"end it with `{VARIABLE} = Pipeline([…])`"
    else:
        said = f"has a `{VARIABLE}` that is a {type(found).__qualname__}, not a Pipeline"
        hint = f"write `{VARIABLE} = Pipeline([…])`, with `from floodmark import Pipeline`"
    raise BadPipelineFile(f"{path} {said}", hint=hint, path=str(path), line=None)
