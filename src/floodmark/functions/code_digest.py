"""The digest of code without comments, formatting, docstrings and annotations, and the outside names that it uses.

Floodmark walks the syntax tree itself, because the output of Python's tools differs between releases: fields are added
and removed. Empty fields are left out, so a field that a newer release adds has no effect where it is not used.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from floodmark.functions.value_digest import leaf

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_IGNORED = frozenset({"annotation", "returns", "type_comment", "type_params", "ctx", "decorator_list"})


def digest_code(node: ast.AST) -> bytes:
    """The digest of a function, a class or any other syntax node."""
    match node:
        case ast.Constant():
            return _constant(node.value)
        case ast.JoinedStr():
            return leaf("f-string", *_fstring_parts(node))
        case ast.FormattedValue(format_spec=ast.JoinedStr() as spec) if not list(_fstring_parts(spec)):
            return digest_code(ast.FormattedValue(node.value, node.conversion, None))
        case ast.Module() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return _definition(node)
    return leaf(type(node).__name__, *_fields(node, _IGNORED))


def is_udf_decorator(decorator: ast.expr) -> bool:
    """Whether a decorator is `udf`, `fm.udf` or a call of it, whose options are not part of the code."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (isinstance(called, ast.Name) and called.id == "udf") or (
        isinstance(called, ast.Attribute) and called.attr == "udf"
    )


_DECLARING = frozenset({"transform", "table", "source", "column", "view"})


def is_pipeline_decorator(decorator: ast.expr) -> bool:
    """Whether a decorator is `pipeline.column(…)` or similar, which returns the function unchanged."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(called, ast.Attribute) or called.attr not in _DECLARING:
        return False
    return isinstance(called.value, ast.Name) and called.value.id == "pipeline"


def find_decorators(node: _FunctionNode | ast.ClassDef) -> list[ast.expr]:
    """The decorators that change what a function or class does."""
    return [
        decorator
        for decorator in node.decorator_list
        if not (is_udf_decorator(decorator) or is_pipeline_decorator(decorator))
    ]


def _definition(node: ast.Module | _FunctionNode | ast.ClassDef) -> bytes:
    outer = () if isinstance(node, ast.Module) else find_decorators(node)
    in_class = isinstance(node, ast.ClassDef)
    return leaf(
        type(node).__name__,
        _list(outer),
        leaf("body", *(_class_statement(s) if in_class else digest_code(s) for s in _body(node.body, in_class))),
        *_fields(node, _IGNORED | {"body"}),
    )


def _class_statement(node: ast.stmt) -> bytes:
    """The digest of a statement in a class. Annotations count here, because data classes are built from them."""
    if isinstance(node, ast.AnnAssign):
        return leaf("member", digest_code(node.annotation), *_fields(node, _IGNORED))
    return digest_code(node)


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
    """The statements that have an effect: no docstrings, no `pass`, no bare annotations of variables."""
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
    # None stands for a missing key of a dict display or a missing keyword default.
    if value is None:
        return leaf("absent")
    return digest_code(value) if isinstance(value, ast.AST) else leaf(type(value).__name__, str(value))


def _fstring_parts(node: ast.JoinedStr) -> Iterator[bytes]:
    """The parts of an f-string, with adjacent texts joined: Python releases split them differently."""
    text = ""
    for value in node.values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        if text:
            yield leaf("text", text)
        text = ""
        yield digest_code(value)
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


# References to outside names

_CallableNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class OuterName:
    """A name defined outside the code, and the members that the code uses of it: ``np.linalg.norm``."""

    name: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportedName:
    """A module that the code itself imports, and the members that the code uses of it."""

    module: str
    level: int
    """The number of packages that a relative import goes up; 0 for an absolute import."""
    members: tuple[str, ...] = ()


Reference = OuterName | ImportedName


def find_references(node: ast.AST) -> list[Reference]:
    """The outside names that a function or a class uses, in a fixed order.

    Annotations are left out. So are a function's own defaults, because their values are already known.
    """
    walk = _Walk()
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            walk.visit_all(find_decorators(node))
            walk.function(node)
        case ast.Lambda():
            walk.function(node)
        case _:
            walk.visit(node)
    return sorted(walk.references, key=repr)


@dataclass
class _Scope:
    """The names that one function or class binds, with the import of each imported name."""

    bound: dict[str, list[ImportedName]] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    declared_nonlocal: set[str] = field(default_factory=set)
    of_class: bool = False

    def bind(self, name: str, *imported: ImportedName) -> None:
        self.bound.setdefault(name, []).extend(imported)


@dataclass
class _Walk:
    scopes: list[_Scope] = field(default_factory=list)
    references: set[Reference] = field(default_factory=set)

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name(ctx=ast.Load()):
                self._load(node.id, ())
            case ast.Attribute():
                self._attribute(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.visit_all([*find_decorators(node), *node.args.defaults, *node.args.kw_defaults])
                self.function(node)
            case ast.Lambda():
                self.visit_all([*node.args.defaults, *node.args.kw_defaults])
                self.function(node)
            case ast.ClassDef():
                self._class(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
            case ast.AnnAssign():
                self.visit_all([node.target, node.value])
            case _:
                self.visit_all(ast.iter_child_nodes(node))

    def function(self, node: _CallableNode) -> None:
        """Visit the body of a function in a new scope."""
        scope = _Scope()
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            scope.bind(argument.arg)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                scope.bind(rest.arg)
        for parameter in getattr(node, "type_params", ()):  # from Python 3.12 on
            scope.bind(parameter.name)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._inside(scope, body)

    def _class(self, node: ast.ClassDef) -> None:
        self.visit_all([*find_decorators(node), *node.bases, *(keyword.value for keyword in node.keywords)])
        self._inside(_Scope(of_class=True), node.body)

    def _inside(self, scope: _Scope, body: Iterable[ast.AST]) -> None:
        body = list(body)
        for statement in body:
            _bind(statement, scope)
        self.scopes.append(scope)
        self.visit_all(body)
        self.scopes.pop()

    def _comprehension(self, node: _Comprehension) -> None:
        first = node.generators[0]
        self.visit(first.iter)  # evaluated in the outer scope: in a class it sees the class's names
        scope = _Scope()
        for generator in node.generators:
            _bind(generator.target, scope)
        self.scopes.append(scope)
        for generator in node.generators:
            self.visit_all([generator.target, *generator.ifs, *([generator.iter] if generator is not first else [])])
        self.visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self.scopes.pop()

    def _attribute(self, node: ast.Attribute) -> None:
        members = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            members.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self._load(value.id, tuple(reversed(members)))
        else:
            self.visit(value)

    def _load(self, name: str, members: tuple[str, ...]) -> None:
        for depth, scope in enumerate(reversed(self.scopes)):
            if name in scope.declared_global:
                break
            if name in scope.declared_nonlocal or (scope.of_class and depth > 0):
                continue
            if name in scope.bound:
                for target in scope.bound[name]:
                    self.references.add(ImportedName(target.module, target.level, target.members + members))
                if scope.of_class and not scope.bound[name]:
                    continue  # a name of a class may be read before it is bound
                return
        self.references.add(OuterName(name, members))


def _bind(node: ast.AST, scope: _Scope) -> None:
    """Add the names that a statement binds in its own scope, not in functions and classes inside it."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            scope.bind(node.id)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            scope.bind(node.name)
            outside = [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else node.args.defaults)]
            for part in outside:
                _bind(part, scope)
            return
        case ast.Lambda():
            return
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for walrus in _walruses(node):
                scope.bind(walrus)
            return
        case ast.Import():
            for alias in node.names:
                name, module = alias.name.partition(".")[0], alias.name
                scope.bind(alias.asname or name, ImportedName(module if alias.asname else name, 0))
        case ast.ImportFrom():
            for alias in node.names:
                scope.bind(alias.asname or alias.name, ImportedName(node.module or "", node.level, (alias.name,)))
        case (
            ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name)
        ):
            scope.bind(name)
        case ast.MatchMapping(rest=str() as name):
            scope.bind(name)
        case ast.Global():
            scope.declared_global.update(node.names)
        case ast.Nonlocal():
            scope.declared_nonlocal.update(node.names)
    for child in ast.iter_child_nodes(node):
        _bind(child, scope)


def _walruses(comprehension: ast.AST) -> Iterator[str]:
    """The names that := binds inside a comprehension; they belong to the enclosing function."""
    for node in ast.walk(comprehension):
        if isinstance(node, ast.NamedExpr):
            yield node.target.id
