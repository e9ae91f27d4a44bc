"""Which names code takes from outside: held against Python's own symbol tables."""

from __future__ import annotations

import ast
import symtable

import pytest

from floodmark.functions.code_digest import ImportedName, OuterName, find_references

FUNCTIONS = [
    "def f(x): return x + y",
    "def f(x):\n    y = x\n    return y + z",
    "def f(x):\n    def g(y): return x + y + z\n    return g",
    "def f(x):\n    def g():\n        nonlocal x\n        x = a\n    return g",
    "def f(x):\n    global y\n    y = x\n    return y",
    "def f(x): return [y for y in x if y > z]",
    "def f(x): return {y: w for y, v in x for w in v(u)}",
    "def f(x): return [(t := y) for y in x], t",
    "def f(x): return (lambda y, z=k: y + z + x + w)(x)",
    "def f(x):\n    try:\n        return a(x)\n    except B as e:\n        return e\n    finally:\n        c()",
    "def f(x):\n    match x:\n        case C(p=q) if q: return q\n        case [h, *t]: return h, t",
    "def f(x):\n    match x:\n        case {'k': v, **r}: return v, r\n        case n: return n",
    "def f(x):\n    for i, (j, *k) in x: yield i, j, k, l\n    else: m()",
    "def f(x):\n    with o(x) as p, q() as (r, s): return p, r, s",
    "def f(x):\n    import a.b as c, d\n    from e import g as h\n    return c, d, h, i",
    "def f(*args, k, **kw): return args, k, kw, z",
    "def f(x):\n    class C(B):\n        def g(self): return D\n    return C",
    "def f(x):\n    del x\n    y += 1\n    x[z] = w.v",
    "async def f(x):\n    async for y in x: await z(y)",
    "def f(x):\n    @deco\n    def g(y=default): return y\n    return g",
    "f = lambda x: x + y",
    "f = lambda: [x for x in y for y in z]",
]


def oracle(text: str) -> set[str]:
    """The names that Python resolves outside of the function."""
    names: set[str] = set()

    def visit(table: symtable.SymbolTable) -> None:
        names.update(s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced())
        for child in table.get_children():
            visit(child)

    for function in symtable.symtable(text, "<text>", "exec").get_children():
        visit(function)
    return names


@pytest.mark.parametrize("text", FUNCTIONS)
def test_names_from_outside_are_those_python_finds(text: str):
    statement = ast.parse(text).body[0]
    node = statement.value if isinstance(statement, ast.Assign) else statement
    assert {found.name for found in find_references(node) if isinstance(found, OuterName)} == oracle(text)


def found(text: str) -> list[OuterName | ImportedName]:
    return find_references(ast.parse(text).body[0])


def test_members_taken_of_a_name_are_kept():
    assert found("def f(x): return np.linalg.norm(x.y.z)") == [OuterName("np", ("linalg", "norm"))]


def test_imports_inside_the_function_say_what_they_bring():
    text = "def f(x):\n    import a.b, c.d as e\n    from ..g import h as i\n    return a.b.k, e.l, i.m\n"
    assert set(found(text)) == {
        ImportedName("a", 0, ("b", "k")),
        ImportedName("c.d", 0, ("l",)),
        ImportedName("g", 2, ("h", "m")),
    }


def test_annotations_and_own_defaults_are_not_looked_at():
    assert found("def f(x: A = D) -> B:\n    y: C = x\n    return y") == []


def test_decorators_are_looked_at_except_udf():
    assert found("@fm.udf(returns=T)\n@cache(size)\ndef f(x): return x") == [OuterName("cache"), OuterName("size")]


def test_names_of_a_class_are_not_seen_by_its_methods():
    text = "class C:\n    k = 1\n    def g(self): return k\n"
    assert found(text) == [OuterName("k")]


def test_imports_of_a_class_are_not_seen_by_its_methods():
    text = "class C:\n    import k\n    def g(self): return k\n"
    assert found(text) == [OuterName("k")]


def test_import_of_a_function_around_is_seen_through_nonlocal():
    text = "def f():\n    import m\n    def g():\n        nonlocal m\n        m = m.x\n    return g\n"
    assert found(text) == [ImportedName("m", 0, ("x",))]
