"""Every mutant applies to the code as it is, and its tests exist. `make mutants` runs them."""

from __future__ import annotations

import ast
from functools import cache

import mutants

SOURCE = mutants.ROOT / "src" / "floodmark"


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((mutants.ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_the_text_that_a_mutant_replaces_occurs_once():
    found = {one.name: (SOURCE / one.file).read_text("utf-8").count(one.old) for one in mutants.load()}
    assert {name: count for name, count in found.items() if count != 1} == {}


def test_the_tests_of_a_mutant_exist():
    named = [(one.name, test) for one in mutants.load() for test in one.tests]
    missing = []
    for mutant, test in named:
        file, *names = test.partition("[")[0].split("::")  # a method may be inherited, so its class is looked for
        if not (mutants.ROOT / file).exists() or (names and names[0] not in names_in(file)):
            missing.append((mutant, test))
    assert missing == []
