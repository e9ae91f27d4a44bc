"""Digests of code are equal exactly if its syntax is: held against Python's own printer on code of other people."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import dataclasses
import enum
import inspect
import json.decoder
import textwrap
import typing
from collections.abc import Iterator

import pytest

from floodmark.functions.code_digest import digest_code
from profiles import sample

MODULES = sample([textwrap, asyncio.base_events, typing, dataclasses, inspect, argparse, enum, json.decoder], 2)


class Bare(ast.NodeTransformer):
    """The naive way: take annotations, docstrings and statements without effect out of the tree."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.returns = None
        node.body = [s for s in node.body if not is_idle(s)]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [s for s in statements if not is_idle(s)])
        return node


def is_idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def pieces() -> Iterator[ast.AST]:
    for module in MODULES:
        tree = ast.parse(inspect.getsource(module))
        assert not any(isinstance(node, ast.AnnAssign) for node in ast.walk(tree)), module
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.expr | ast.stmt))


@pytest.mark.slow
@pytest.mark.soak
def test_digests_are_equal_exactly_if_the_printed_syntax_is():
    by_digest: dict[bytes, str] = {}
    by_dump: dict[str, bytes] = {}
    for node in list(pieces()):
        found = digest_code(node)
        dump = ast.dump(Bare().visit(node)).replace("ctx=Store()", "ctx=Load()").replace("ctx=Del()", "ctx=Load()")
        assert by_digest.setdefault(found, dump) == dump
        assert by_dump.setdefault(dump, found) == found
    assert len(by_digest) > 1_000


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_printing_and_parsing_again_changes_nothing(module):
    tree = ast.parse(inspect.getsource(module))
    assert digest_code(ast.parse(ast.unparse(tree))) == digest_code(tree)


def of(text: str) -> bytes:
    return digest_code(ast.parse(text))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f'a' 'b' f'{x}' ''", "f'ab{x}'"),
        ("f'{x:}'", "f'{x}'"),
        ("def f(x: int) -> str:\n y: int = x\n z: int\n return y", "def f(x):\n y = x\n return y"),
        ("if x:\n 'note'\n y()", "if x:\n y()"),
        ("u'a'", "'a'"),
    ],
)
def test_other_spellings_of_the_same_are_the_same(one: str, other: str):
    assert of(f"def f(x):\n return {one}" if "\n" not in one else one) == of(
        f"def f(x):\n return {other}" if "\n" not in other else other
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = {**a, 'b': c}", "x = {'b': c, **a}"),
        ("x = f'{a!r}'", "x = f'{a!s}'"),
        ("x = f'{a}b'", "x = f'b{a}'"),
        ("class C:\n x: int", "class C:\n x: str"),
        ("class C:\n x: int = 1", "class C:\n x = 1"),
        ("x = 1", "x = True"),
        ("x = 0.0", "x = -0.0"),
        ("x = 'a'", "x = b'a'"),
        ("from a import b", "from .a import b"),
        ("def f(a, /, b): x", "def f(a, b): x"),
        ("def f(*, a, b=1): x", "def f(*, a=1, b): x"),
        ("if a:\n b()\nelse:\n c()", "if a:\n c()\nelse:\n b()"),
        ("if a: b()\nc()", "if a:\n b()\n c()"),
        ("@d\ndef f(): x", "def f(): x"),
        ("x = ...", "x = None"),
    ],
)
def test_what_differs_has_another_digest(one: str, other: str):
    assert of(one) != of(other)
