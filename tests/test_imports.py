"""Imports point down, in the order of `MAY_IMPORT`, and never in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "floodmark"

_RECORDS = {"errors", "chain", "storage", "engine", "ledger", "rows"}
_SHARED = _RECORDS | {"functions", "derive"}
_DERIVED = _SHARED | {"columns", "timeline", "transforms", "views", "sources"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "chain": {"errors", "chain"},
    "storage": {"errors", "chain", "storage"},
    "engine": {"errors", "storage", "engine"},
    "ledger": _RECORDS - {"rows"},
    "rows": _RECORDS,
    "functions": _RECORDS | {"functions"},
    "derive": _RECORDS | {"derive"},
    "columns": _SHARED | {"columns"},
    "timeline": _SHARED | {"timeline"},
    "transforms": _SHARED | {"transforms"},
    "views": _SHARED | {"columns", "transforms", "views"},
    "sources": _SHARED | {"transforms", "sources"},
    "dataset": _DERIVED,
    "view": _DERIVED | {"dataset"},
    "provenance": _DERIVED | {"dataset", "view", "provenance"},
    "backup": _DERIVED | {"backup"},
    "lake": _DERIVED | {"dataset", "view", "provenance", "backup"},
    "maintenance": _DERIVED | {"dataset", "lake", "backup", "maintenance"},
    "pipeline": _DERIVED | {"dataset", "view", "lake", "floodmark", "pipeline"},
    "spark_source": _DERIVED | {"dataset", "lake", "spark_source"},
    "cli": _DERIVED
    | {"dataset", "view", "provenance", "backup", "lake", "maintenance", "floodmark", "pipeline", "cli"},
    "floodmark": _DERIVED | {"backup", "dataset", "view", "lake", "spark_source", "pipeline"},
}
"""For each package or module of the first level, those that it may import; `floodmark` is the root's own names."""

PURE = "chain"
PURE_MAY_IMPORT = sys.stdlib_module_names | {"floodmark", "cryptography"}
"""Only the creation of a dataset's id imports `cryptography`, when it is called."""


@dataclass(frozen=True)
class Import:
    """One import statement's target, and where it stands."""

    module: str
    target: str
    line: int
    for_types: bool


def module_name(path: Path, source: Path) -> str:
    parts = ("floodmark", *path.relative_to(source).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, source: Path, modules: set[str]) -> Iterator[Import]:
    """Every import of a file, those inside functions and for type checkers too; names resolved to modules."""
    module = module_name(path, source)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(), str(path))
    for node, for_types in statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, for_types)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(module, inner if inner in modules else base, node.lineno, for_types)


def statements(node: ast.AST, for_types: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement below a node, and whether only type checkers run it."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            yield inner, for_types
            yield from statements(inner, for_types or is_type_checking(inner))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def part(module: str) -> str:
    """The package or module of the first level that a module belongs to."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else pieces[0]


def problems(source: Path) -> list[str]:
    """What is wrong with the imports of a source tree, one sentence each."""
    paths = sorted(source.rglob("*.py"))
    modules = {module_name(path, source) for path in paths}
    found: list[str] = []
    edges: dict[str, set[str]] = {}
    for path in paths:
        for item in imports(path, source, modules):
            own, top = part(item.module), item.target.split(".")[0]
            where = f"{path.relative_to(source)}:{item.line}"
            if own not in MAY_IMPORT:
                found.append(f"{where}: {own} has no place in the order of imports")
            elif top == "floodmark" and part(item.target) not in MAY_IMPORT[own]:
                found.append(f"{where}: {own} must not import {item.target}")
            elif own == PURE and top not in PURE_MAY_IMPORT:
                found.append(f"{where}: {own} is pure Python and must not import {item.target}")
            # What only the type checker imports never runs, so it closes no circle.
            if item.target in modules - {item.module} and part(item.target) == own and not item.for_types:
                edges.setdefault(item.module, set()).add(item.target)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append(f"modules import each other in a circle: {' → '.join(reversed(error.args[1]))}")
    return found


@pytest.mark.slow
def test_imports_point_downwards_and_never_in_a_circle():
    assert problems(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        (
            "chain/ids.py",
            "from floodmark.storage.store import Store",
            "chain must not import floodmark.storage",
        ),
        ("chain/ids.py", "import pyarrow as pa", "chain is pure Python and must not import pyarrow"),
        ("chain/ids.py", "def f():\n    from pyspark.sql import DataFrame", "must not import pyspark.sql"),
        ("storage/store.py", "from floodmark.ledger import write", "storage must not import floodmark.ledger.write"),
        ("storage/store.py", "from ..ledger import write", "storage must not import floodmark.ledger.write"),
        ("engine/run.py", "import floodmark.chain.ids", "engine must not import floodmark.chain.ids"),
        ("engine/run.py", "from floodmark import ledger", "engine must not import floodmark.ledger"),
        ("ledger/write.py", "from floodmark.lake import Lake", "ledger must not import floodmark.lake"),
        ("ledger/write.py", "from floodmark import Lake", "ledger must not import floodmark"),
        ("ledger/write.py", "if TYPE_CHECKING:\n    import floodmark.cli", "ledger must not import floodmark.cli"),
        ("lake.py", "from floodmark.cli import main", "lake must not import floodmark.cli"),
        ("helpers/misc.py", "import os", "helpers has no place in the order of imports"),
        ("ledger/read.py", "from floodmark.ledger import write", "floodmark.ledger.write → floodmark.ledger.read"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, line: str, complaint: str):
    files = {
        "__init__.py": "from floodmark.lake import Lake",
        "lake.py": "from floodmark.ledger import write",
        "chain/__init__.py": "",
        "chain/ids.py": "import hashlib",
        "storage/__init__.py": "",
        "storage/store.py": "from floodmark.chain import hashes",
        "engine/__init__.py": "",
        "engine/run.py": "from pyspark.sql import SparkSession",
        "ledger/__init__.py": "",
        "ledger/read.py": "from floodmark.engine import run",
        "ledger/write.py": "from .read import rows\nfrom floodmark.storage.store import Store",
        "cli/__init__.py": "from floodmark import Lake",
        "helpers/misc.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert problems(tmp_path) == []
    (tmp_path / file).write_text(f"{files[file]}\n{line}\n")
    (found,) = problems(tmp_path)
    assert complaint in found


def loaded_by(program: str, *wanted: str) -> list[str]:
    """The packages among `wanted` that a fresh interpreter has loaded after running a program."""
    report = f"import sys\n{program}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}} & set({wanted!r})))"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return run.stdout.split()


ALL_MODULES = """
import importlib, pkgutil, floodmark
for module in pkgutil.walk_packages(floodmark.__path__, "floodmark."):
    if not module.name.endswith("__main__") and module.name != "floodmark.spark_source.source":  # classes of Spark's
        importlib.import_module(module.name)
"""

# The root package imports everything; the chain has to do without it to show what it needs by itself.
CHAIN_ALONE = f"""
import importlib, pkgutil, types
root = types.ModuleType("floodmark")
root.__path__ = [{str(SOURCE)!r}]
sys.modules["floodmark"] = root
for module in pkgutil.walk_packages([{str(SOURCE / "chain")!r}], "floodmark.chain."):
    importlib.import_module(module.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", ["import floodmark", "import floodmark.cli", ALL_MODULES])
def test_importing_floodmark_imports_no_spark(program: str):
    assert loaded_by(program, "pyspark", "py4j") == []


def test_the_chain_loads_nothing_but_the_standard_library():
    assert loaded_by(CHAIN_ALONE, "floodmark", "pyspark", "pyarrow", "numpy", "pandas", "cryptography") == ["floodmark"]
