"""Defines a function again from the source text that a chain stores, and only if it is the same function.

The text runs in an empty module. Its fingerprint must then be the recorded version. A function that reads constants or
functions of its old module has another fingerprint, or none, so it is never replaced by something else.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import linecache
from collections.abc import Callable
from typing import Any

_USUAL_IMPORTS = {
    "np": "numpy",
    "pa": "pyarrow",
    "pc": "pyarrow.compute",
    "pd": "pandas",
    "pl": "polars",
    "fm": "floodmark",
}
_IMPORTED_BY_NAME = (
    *("collections", "datetime", "decimal", "functools", "hashlib", "itertools", "json", "math", "operator"),
    *("random", "re", "statistics", "string", "time", "uuid"),
    *("floodmark", "numpy", "pandas", "polars", "pyarrow"),
)
"""Modules that a text may use without an import. A name that meant something else changes the fingerprint."""

_FIRST_LINE = "from __future__ import annotations\n"


def define_stored_function(text: str, is_same: Callable[[Callable[..., Any]], bool]) -> Callable[..., Any] | None:
    """The function of a stored text if `is_same` accepts it; None if the text alone does not define it.

    This runs the text.
    """
    if not text:
        return None
    whole = _FIRST_LINE + (f"stored = {text}\n" if text.startswith("lambda") else text)
    name = f"<stored code {hashlib.sha256(whole.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(whole), None, whole.splitlines(keepends=True), name)
    try:
        tree = ast.parse(whole, name)
        namespace = {"__name__": "stored_code", **_import_used(tree)}
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)  # noqa: S102
        defined = namespace[_defined_name(tree.body[-1])]
        function: Callable[..., Any] = getattr(defined, "function", defined)  # of a udf, the plain function
        return function if is_same(function) else None
    except Exception:
        return None  # the text may be anything: an error means that it is not enough


def _import_used(tree: ast.Module) -> dict[str, Any]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    named = {**_USUAL_IMPORTS, **{name: name for name in _IMPORTED_BY_NAME}}
    modules: dict[str, Any] = {name: importlib.import_module(named[name]) for name in sorted(used & named.keys())}
    if "udf" in used:
        modules["udf"] = importlib.import_module("floodmark").udf
    return modules


def _defined_name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    assert isinstance(statement, ast.Assign)
    [target] = statement.targets
    assert isinstance(target, ast.Name)
    return target.id
