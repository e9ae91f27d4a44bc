"""The chain is pure Python: reading one needs neither Spark nor Arrow nor a store."""

import ast
import sys
from pathlib import Path

import pytest

import floodmark.chain

MODULES = sorted(Path(floodmark.chain.__file__).parent.glob("*.py"))


def imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0
            names.add(node.module)
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_chain_imports_only_itself_and_the_standard_library(module):
    others = {name for name in imported(module) if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in others if not name.startswith("floodmark.chain")} <= {"floodmark.errors"}
