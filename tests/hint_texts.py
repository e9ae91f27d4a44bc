"""The hints of all errors in the source, and the commands, options and calls that they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "floodmark"

_COMMAND = re.compile(r"`floodmark ([^`]*)`")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
_CALL = re.compile(
    r"(?P<path>(?:[A-Za-z_]\w*\.|\)\.|\]\.|\.)*)(?P<name>[A-Za-z_]\w*)\((?P<rest>[^()]*(?:\([^()]*\)[^()]*)*)\)"
)
_KEYWORD = re.compile(r"(?<![\w.{])([a-z_]+)=(?=[^=]|$)")


@dataclass(frozen=True)
class Call:
    """A call in a hint: its last name, what stands before the name, and the names of its keyword arguments."""

    path: str
    name: str
    keywords: tuple[str, ...]


@dataclass(frozen=True)
class Hint:
    """A hint with {…} for the values that it gets, and the module and line where it is."""

    module: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"

    @cached_property
    def commands(self) -> list[list[str]]:
        """The arguments of each command after `floodmark`."""
        return [command.split() for command in _COMMAND.findall(self.text)]

    @cached_property
    def options(self) -> list[str]:
        """Options of commands, wherever they stand."""
        return _OPTION.findall(self.text)

    @cached_property
    def calls(self) -> list[Call]:
        """Calls of functions and methods, those inside other calls too."""
        return list(_calls(_COMMAND.sub("", self.text)))

    @cached_property
    def keywords(self) -> list[str]:
        """Arguments that are named outside of calls, such as key=['id']."""
        plain = _CALL.sub("", _COMMAND.sub("", self.text))
        return [] if "://" in plain else _KEYWORD.findall(plain)

    @property
    def names_something(self) -> bool:
        return bool(self.commands or self.options or self.calls or self.keywords)


def _calls(text: str) -> Iterator[Call]:
    for found in _CALL.finditer(text):
        yield Call(found["path"].rstrip("."), found["name"], tuple(_KEYWORD.findall(_CALL.sub("", found["rest"]))))
        yield from _calls(found["rest"])


def all_hints() -> list[Hint]:
    """Every hint of the source: what is given as `hint=`, and what a variable called hint gets."""
    return [hint for path in sorted(SOURCE.rglob("*.py")) for hint in _hints(path)]


def _hints(path: Path) -> Iterator[Hint]:
    module = path.relative_to(SOURCE).with_suffix("").as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        is_argument = isinstance(node, ast.keyword) and node.arg == "hint"
        is_variable = isinstance(node, ast.Assign) and any("hint" in ast.unparse(to).lower() for to in node.targets)
        if is_argument or is_variable:
            assert isinstance(node, ast.keyword | ast.Assign)
            yield from (Hint(module, node.value.lineno, text) for text in _texts(node.value))


def _texts(node: ast.AST) -> Iterator[str]:
    """The texts of an expression: of both branches of a condition, and a sum as one text."""
    match node:
        case ast.Constant(str(text)):
            yield text
        case ast.JoinedStr(parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in parts)
        case ast.BinOp(left, ast.Add(), right):
            yield "".join([*_texts(left), *_texts(right)])
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _texts(child)
