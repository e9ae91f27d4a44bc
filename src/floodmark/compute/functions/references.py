"""The names that a piece of code takes from outside: globals, variables of functions around it, and imports in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from floodmark.compute.functions.syntax import decorators

_Callable = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Outer:
    """A name defined around the code, and the members that are taken of it: ``np.linalg.norm``."""

    name: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Imported:
    """A module that the code imports itself, and the members that are taken of it."""

    module: str
    level: int
    """How many packages up a relative import starts; 0 for one that is not relative."""
    members: tuple[str, ...] = ()


Reference = Outer | Imported


def references(node: ast.AST) -> list[Reference]:
    """What a function or a class takes from outside, in a fixed order.

    Annotations do not count, and neither do a function's own defaults: those have values already.
    """
    walk = _Walk()
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            walk.visit_all(decorators(node))
            walk.function(node)
        case ast.Lambda():
            walk.function(node)
        case _:
            walk.visit(node)
    return sorted(walk.found, key=repr)


@dataclass
class _Scope:
    """The names that one function or class binds; those bound by an import know what they import."""

    bound: dict[str, list[Imported]] = field(default_factory=dict)
    declared_global: set[str] = field(default_factory=set)
    declared_nonlocal: set[str] = field(default_factory=set)
    of_class: bool = False

    def bind(self, name: str, *imported: Imported) -> None:
        self.bound.setdefault(name, []).extend(imported)


@dataclass
class _Walk:
    scopes: list[_Scope] = field(default_factory=list)
    found: set[Reference] = field(default_factory=set)

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
                self.visit_all([*decorators(node), *node.args.defaults, *node.args.kw_defaults])
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

    def function(self, node: _Callable) -> None:
        """What the body of a function takes from outside of it."""
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
        self.visit_all([*decorators(node), *node.bases, *(keyword.value for keyword in node.keywords)])
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
        self.visit(first.iter)  # evaluated outside: in a class it sees the class's names
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
                    self.found.add(Imported(target.module, target.level, target.members + members))
                if scope.of_class and not scope.bound[name]:
                    continue  # a class's own name may also be read before it is bound
                return
        self.found.add(Outer(name, members))


def _bind(node: ast.AST, scope: _Scope) -> None:
    """Enter the names that a statement binds in its own scope, not in functions and classes inside it."""
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
                scope.bind(alias.asname or name, Imported(module if alias.asname else name, 0))
        case ast.ImportFrom():
            for alias in node.names:
                scope.bind(alias.asname or alias.name, Imported(node.module or "", node.level, (alias.name,)))
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
    """Names that := binds inside a comprehension: they belong to the function around it."""
    for node in ast.walk(comprehension):
        if isinstance(node, ast.NamedExpr):
            yield node.target.id
