"""The digest of a piece of code: what it says, without comments, formatting, docstrings and annotations.

The walk is our own, since what Python's tools print of a syntax tree differs from one release to the next: fields
come and go. A field that is empty is left out, so one that a newer release adds changes nothing where it is not used.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator

from floodmark.compute.functions.forms import leaf

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_IGNORED = frozenset({"annotation", "returns", "type_comment", "type_params", "ctx", "decorator_list"})


def digest(node: ast.AST) -> bytes:
    """The digest of a function, a class or any other piece of code."""
    match node:
        case ast.Constant():
            return _constant(node.value)
        case ast.JoinedStr():
            return leaf("f-string", *_joined(node))
        case ast.FormattedValue(format_spec=ast.JoinedStr() as spec) if not list(_joined(spec)):
            return digest(ast.FormattedValue(node.value, node.conversion, None))
        case ast.Module() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return _definition(node)
    return leaf(type(node).__name__, *_fields(node, _IGNORED))


def is_udf_decorator(decorator: ast.expr) -> bool:
    """Whether a decorator is `udf`, `fm.udf`, or a call of it: its options are not part of the code."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (isinstance(called, ast.Name) and called.id == "udf") or (
        isinstance(called, ast.Attribute) and called.attr == "udf"
    )


_DECLARING = frozenset({"transform", "table", "source", "column", "view"})


def is_pipeline_decorator(decorator: ast.expr) -> bool:
    """Whether a decorator is `pipeline.column(…)` or the like, which gives the function back as it is."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(called, ast.Attribute) or called.attr not in _DECLARING:
        return False
    return isinstance(called.value, ast.Name) and called.value.id == "pipeline"


def decorators(node: _Function | ast.ClassDef) -> list[ast.expr]:
    """The decorators that change what a function or class does."""
    return [
        decorator
        for decorator in node.decorator_list
        if not (is_udf_decorator(decorator) or is_pipeline_decorator(decorator))
    ]


def _definition(node: ast.Module | _Function | ast.ClassDef) -> bytes:
    around = () if isinstance(node, ast.Module) else decorators(node)
    in_class = isinstance(node, ast.ClassDef)
    return leaf(
        type(node).__name__,
        _list(around),
        leaf("body", *(_class_statement(s) if in_class else digest(s) for s in _body(node.body, in_class))),
        *_fields(node, _IGNORED | {"body"}),
    )


def _class_statement(node: ast.stmt) -> bytes:
    """In a class an annotation is more than a remark: data classes are made of them."""
    if isinstance(node, ast.AnnAssign):
        return leaf("member", digest(node.annotation), *_fields(node, _IGNORED))
    return digest(node)


def _fields(node: ast.AST, ignored: frozenset[str]) -> Iterator[bytes | str]:
    for name in sorted(set(node._fields) - ignored):
        value = getattr(node, name, None)
        if value is None:
            continue
        if isinstance(value, list):
            statements = bool(value) and isinstance(value[0], ast.stmt)
            value = list(_body(value, in_class=False)) if statements else value
            if value:
                yield name
                yield _list(value)
        else:
            yield name
            yield _item(value)


def _body(statements: list[ast.stmt], in_class: bool) -> Iterator[ast.stmt]:
    """Statements that do something: no docstrings, no `pass`, no bare annotations of variables."""
    for statement in statements:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.AnnAssign(target=target, value=value) if not in_class:
                if value is not None:
                    yield ast.Assign([target], value)
            case _:
                yield statement


def _list(items: object) -> bytes:
    assert isinstance(items, list | tuple)
    return leaf("list", *map(_item, items))


def _item(value: object) -> bytes:
    # The keys of a dict display and the defaults of keywords have None where there is none.
    if value is None:
        return leaf("absent")
    return digest(value) if isinstance(value, ast.AST) else leaf(type(value).__name__, str(value))


def _joined(node: ast.JoinedStr) -> Iterator[bytes]:
    """The parts of an f-string; how its text is cut into pieces differs between releases."""
    text = ""
    for value in node.values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        if text:
            yield leaf("text", text)
        text = ""
        yield digest(value)
    if text:
        yield leaf("text", text)


def _constant(value: object) -> bytes:
    match value:
        case bytes():
            return leaf("bytes", value)
        case float():
            return leaf("float", struct.pack(">d", value))
        case complex():
            return leaf("complex", struct.pack(">dd", value.real, value.imag))
        case bool() | str() | None:
            return leaf(type(value).__name__, str(value))
        case int():
            return leaf("int", hex(value))
    return leaf("...")
