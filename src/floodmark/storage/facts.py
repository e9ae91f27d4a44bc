"""Values from JSON that another program may have written: each is checked against the declared type of its field."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_LEAST, _END = -(1 << 63), 1 << 64  # of the numbers that arrays of 64 bits hold
_SHOWN = 60


def parse_json(data: bytes | str) -> Any:
    """Parsed JSON; `ValueError` for any other text, also for JSON that is nested too deep."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def build(kind: type[T], facts: Any, **parsed: Any) -> T:
    """A dataclass from the JSON of its fields; `ValueError` if a field is missing, unknown, or of another type.

    Tuples are lists in JSON, bytes are hex. `parsed` has fields of other types, which the caller has parsed.
    """
    if not isinstance(facts, dict):
        raise ValueError(f"{_shown(facts)} is not a {kind.__name__}")
    converters = _converters(kind)
    values = {}
    for name, value in facts.items():
        if name in parsed:
            continue
        if name not in converters:
            raise ValueError(f"a {kind.__name__} has no {_shown(name)}")
        try:
            values[name] = converters[name](value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    try:
        return kind(**values, **parsed)
    except TypeError as error:
        raise ValueError(f"{_shown(facts)} is not a {kind.__name__}: {error}") from error


def build_row(kind: type[T], row: Any) -> T:
    """A dataclass from the list of its fields."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(row, list) or len(row) != len(names):
        raise ValueError(f"{_shown(row)} is not a {kind.__name__}")
    return build(kind, dict(zip(names, row, strict=True)))


def natural(value: int) -> int:
    """The number of something: at least 0, and small enough for a signed number of 64 bits."""
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{value} is not a number from 0 to 2^63")
    return value


def sha3_hex(value: str) -> str:
    """The hex of a SHA3-256 digest."""
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{_shown(value)} is not a digest")
    return value


Natural = Annotated[int, natural]
Sha3Hex = Annotated[str, sha3_hex]


_Converters = dict[str, Callable[[Any], Any]]
_known: dict[Any, _Converters] = {}


def _converters(kind: Any) -> _Converters:
    if kind not in _known:
        hints = get_type_hints(kind, include_extras=True)
        _known[kind] = {one.name: _LateConverter(hints[one.name]) for one in fields(kind) if one.init}
    return _known[kind]


class _LateConverter:
    """Converts values of a type. Types without a converter are no error before a value needs one."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._convert: Callable[[Any], Any] | None = None

    def __call__(self, value: Any) -> Any:
        if self._convert is None:
            self._convert = _converter(self._hint)
        return self._convert(value)


def _converter(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: build(hint, value)
    if origin is Annotated:
        base, checks = _converter(arguments[0]), hint.__metadata__
        return lambda value: _checked(base(value), checks)
    if origin in (Union, types.UnionType):
        [other] = [_converter(one) for one in arguments if one is not type(None)]
        return lambda value: None if value is None else other(value)
    if origin is Literal:
        return lambda value: _one_of(value, arguments)
    if origin is tuple and arguments[1:] == (...,):
        every = _converter(arguments[0])
        return lambda value: tuple(every(one) for one in _a(list, value))
    if origin is tuple:
        each = [_converter(one) for one in arguments]
        return lambda value: tuple(convert(one) for convert, one in zip(each, _a(list, value), strict=True))
    if origin is Sequence:
        items = _converter(arguments[0])
        return lambda value: [items(one) for one in _a(list, value)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        held = _converter(arguments[1])
        return lambda value: {_text(name): held(one) for name, one in _a(dict, value).items()}
    raise NotImplementedError(f"facts of the type {hint}")


def _a(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise ValueError(f"{_shown(value)} is not a {kind.__name__}")
    return value


def _number(value: Any) -> int:
    if not _LEAST <= _a(int, value) < _END:
        raise ValueError(f"{_shown(value)} has more than 64 bits")
    return int(value)


def _text(value: Any) -> str:
    _a(str, value).encode()  # refuses parts of characters, which cannot be written anywhere
    return str(value)


def _one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    if type(value) is not str or value not in choices:
        raise ValueError(f"{_shown(value)} is not one of {', '.join(map(repr, choices))}")
    return value


def _checked(value: Any, checks: tuple[Callable[[Any], Any], ...]) -> Any:
    for check in checks:
        value = check(value)
    return value


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested too deep"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    int: _number,
    str: _text,
    bool: lambda value: _a(bool, value),
    float: lambda value: float(value if type(value) is int else _a(float, value)),
    bytes: lambda value: bytes.fromhex(_a(str, value)),
    Any: lambda value: value,
}
