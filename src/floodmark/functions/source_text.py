"""The source text and syntax of loaded functions and classes."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class SourceMissing(Exception):
    """The source of a function or class is not available. The message continues a sentence."""


@dataclass(frozen=True)
class DefinitionSource:
    """The text and syntax of a definition."""

    node: _Function | ast.ClassDef
    text: str


def function_source(function: FunctionType) -> DefinitionSource:
    """The source of this function, not of a wrapped one. Refused if the file has changed since it was loaded."""
    code = function.__code__
    file = _read_file(code.co_filename, function.__globals__)
    nodes = [node for node in file.functions if _name(node) == code.co_name and _line(node) == code.co_firstlineno]
    if len(nodes) > 1:
        nodes = _innermost([node for node in nodes if _contains_code(node, code)])
    if len(nodes) != 1 or not _is_unchanged(file, code, function.__globals__):
        raise SourceMissing("its file has changed since it was loaded")
    return DefinitionSource(nodes[0], file.text_of(nodes[0]))


def class_source(cls: type) -> DefinitionSource:
    """The source of a class."""
    methods = own_methods(cls)
    module = sys.modules.get(cls.__module__)
    names = {method.__code__.co_filename for method in methods} or {getattr(module, "__file__", None) or ""}
    file = _read_file(min(names), class_namespace(cls))
    lines = {method.__code__.co_firstlineno for method in methods}
    named = [node for name, node in file.classes() if name == cls.__qualname__]
    if not named:
        raise SourceMissing("its source is not available")
    nodes = [node for node in named if lines <= _lines_of_functions(node)]
    if not nodes or not all(_is_unchanged(file, method.__code__, method.__globals__) for method in methods):
        raise SourceMissing("its file has changed since it was loaded")
    return DefinitionSource(nodes[-1], file.text_of(nodes[-1]))


def own_methods(cls: type) -> list[FunctionType]:
    """The functions written in a class, sorted by name, without those that a decorator generated."""
    members = vars(cls)
    return [
        method
        for name in sorted(members)
        for method in _functions(members[name])
        if method.__code__.co_qualname.startswith(f"{cls.__qualname__}.") and method.__code__.co_filename != "<string>"
    ]


def class_namespace(cls: type) -> dict[str, Any]:
    """The globals of the module that defines a class."""
    for method in own_methods(cls):
        return method.__globals__
    module = sys.modules.get(cls.__module__)
    return {} if module is None else vars(module)


def find_source_text(function: Callable[..., Any]) -> str:
    """The source text of a function or of an object's class; empty if it is not available."""
    plain: Any = inspect.unwrap(function)
    plain = getattr(plain, "__func__", getattr(plain, "func", plain))
    try:
        if isinstance(plain, FunctionType):
            return function_source(plain).text
        return class_source(plain if isinstance(plain, type) else type(plain)).text
    except SourceMissing:
        return ""


@dataclass(frozen=True)
class _File:
    tree: ast.Module
    text: str
    name: str

    @functools.cached_property
    def functions(self) -> list[_Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, _Function)]

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        return _classes(self.tree, "")

    def text_of(self, node: _Function | ast.ClassDef) -> str:
        if isinstance(node, ast.Lambda):
            return ast.get_source_segment(self.text, node) or ""
        lines = self.text.splitlines(keepends=True)[_line(node) - 1 : node.end_lineno]
        return inspect.cleandoc("\n" + "".join(lines)) if lines else ""

    @functools.cached_property
    def codes(self) -> dict[tuple[str, int], list[CodeType]]:
        """The compiled code of its functions, by qualified name and first line."""
        codes: dict[tuple[str, int], list[CodeType]] = {}
        waiting = [compile(self.tree, self.name, "exec", dont_inherit=True)]
        while waiting:
            code = waiting.pop()
            codes.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
            waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        return codes


def _read_file(name: str, namespace: dict[str, Any]) -> _File:
    linecache.checkcache(name)
    lines = linecache.getlines(name, namespace)
    if not lines:
        raise SourceMissing("its source is not available")
    return _parse_file(name, "".join(lines))


@functools.lru_cache(maxsize=64)
def _parse_file(name: str, text: str) -> _File:
    try:
        try:
            return _File(ast.parse(text, name), text, name)
        except SystemError:  # Python 3.11 sometimes miscounts its recursion depth; a second attempt succeeds
            return _File(ast.parse(text, name), text, name)
    except (SyntaxError, ValueError) as error:
        raise SourceMissing(f"its source cannot be parsed ({error})") from error


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield prefix + child.name, child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _classes(child, prefix)


def _name(node: _Function) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _line(node: _Function | ast.ClassDef) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(part.lineno for part in (node, *decorators))


def _contains_code(node: _Function, code: CodeType) -> bool:
    """Whether all of the code is from inside the body of this function or lambda."""
    body = node.body if isinstance(node, ast.Lambda) else node
    assert not isinstance(body, list)
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    for line, end_line, column, end_column in code.co_positions():
        if line is None or column is None or end_line is None or end_column is None or column == end_column:
            continue
        if (line, column) < start or (end_line, end_column) > end:
            return False
    return True


def _innermost(nodes: list[_Function]) -> list[_Function]:
    return [node for node in nodes if not any(other is not node and other in ast.walk(node) for other in nodes)]


def _is_unchanged(file: _File, code: CodeType, namespace: dict[str, Any]) -> bool:
    loader = namespace.get("__loader__")
    if loader is not None and type(loader) is not importlib.machinery.SourceFileLoader:
        return True  # some loaders rewrite the code that they load, such as pytest's
    return any(
        (compiled.co_code, compiled.co_names, compiled.co_varnames) == (code.co_code, code.co_names, code.co_varnames)
        for compiled in file.codes.get((code.co_qualname, code.co_firstlineno), ())
    )


def _lines_of_functions(node: ast.ClassDef) -> set[int]:
    return {_line(inner) for inner in ast.walk(node) if isinstance(inner, _Function)}


def _functions(member: object) -> list[FunctionType]:
    """The functions of a class member: of a method of any kind, or of a property."""
    if isinstance(member, property):
        return [each for each in (member.fget, member.fset, member.fdel) if isinstance(each, FunctionType)]
    member = getattr(member, "__func__", member)
    return [member] if isinstance(member, FunctionType) else []
