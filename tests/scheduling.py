"""Which worker runs what: all tests with the shared Spark session on one, each other file on any."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

SPARK = "spark"
EVERY = "*"


class FileScheduling(LoadFileScheduling):
    """Send whole files to workers, except that tests marked `spark` go to one worker with one session.

    Tests marked `spark` and `process` start JVMs of their own, so any worker will do.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        marked = spark_tests(self.config.rootpath / file)
        return SPARK if EVERY in marked or test.partition("[")[0] in marked else file


@cache
def spark_tests(file: Path) -> frozenset[str]:
    """The names of the tests that use the shared session by their marks; `EVERY` for a whole file."""
    text = file.read_text()
    if "mark.spark" not in text:
        return frozenset()
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and shares(node.value):
            found.add(EVERY)
        elif isinstance(node, ast.FunctionDef) and shares(*node.decorator_list):
            found.add(node.name)
    return frozenset(found)


def shares(*marks: ast.expr) -> bool:
    text = " ".join(ast.unparse(mark) for mark in marks)
    return "mark.spark" in text and "mark.process" not in text
