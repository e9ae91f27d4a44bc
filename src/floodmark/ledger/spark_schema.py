"""Schemas as Spark writes them in text: "id int, tags array<string>, price decimal(10,2) not null".

Arrow's names of types are understood, too: where both have a name, Spark's meaning counts.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from floodmark.errors import BadData, UnsupportedType

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "dec": pa.decimal128(10, 0),
    "numeric": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[A-Za-z_0-9][\w\[\]]*|[<>(),:]|'[^']*')")


def parse_spark_schema(text: str) -> pa.Schema:
    """The schema of Spark's text. Raises `BadData` if the text is not a schema."""
    reader = _Reader.of(text)
    if reader is None:
        raise _not_a_schema(text, text)
    fields = [reader.field("")]
    while reader.takes(","):
        fields.append(reader.field(""))
    reader.end()
    return pa.schema(fields)


def parse_spark_type(column: str, text: str) -> pa.DataType:
    """The type with this name, such as bigint, decimal(10,2) or array<string>."""
    reader = _Reader.of(text)
    if reader is None:
        raise not_a_type(column, text)
    try:
        found = reader.type(column)
        reader.end()
    except BadData as error:
        raise not_a_type(column, text) from error
    return found


def not_a_type(column: str, given: object) -> UnsupportedType:
    """The error for a value that is not a type."""
    return UnsupportedType(
        f"column {column!r}: {given!r} is not a type",
        hint="give a pyarrow type or its name, such as 'int64', 'string' or 'timestamp[us]', or Spark's: 'bigint'",
        column=column,
        data_type=str(given),
    )


def _not_a_schema(text: str, rest: str) -> BadData:
    where = f" at {rest.strip()!r}" if rest.strip() and rest != text else ""
    return BadData(f"{text!r} is not a schema{where}", hint="write names and types, as in 'id int, v string'")


@dataclass
class _Reader:
    """Reads the words of a text from left to right."""

    text: str
    tokens: list[str]
    at: int = 0

    @classmethod
    def of(cls, text: str) -> _Reader | None:
        """None if the text has other characters than a schema, or no words."""
        tokens, end = [], 0
        while end < len(text.rstrip()):
            found = _TOKEN.match(text, end)
            if found is None:
                return None
            tokens.append(found[1])
            end = found.end()
        return cls(text, tokens) if tokens else None

    def takes(self, *wanted: str) -> bool:
        """Skip these words if they come next."""
        following = [token.lower() for token in self.tokens[self.at : self.at + len(wanted)]]
        if following != list(wanted):
            return False
        self.at += len(wanted)
        return True

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self._problem()

    def field(self, parent: str) -> pa.Field:
        """A name and its type, with NOT NULL and COMMENT as Spark has them."""
        name = self._word()
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        self.takes(":")
        data_type = self.type(parent + name)
        is_required = self.takes("not", "null")
        if self.takes("comment"):
            self._word()
        return pa.field(name, data_type, nullable=not is_required)

    def type(self, column: str) -> pa.DataType:
        """A type, with its parameters."""
        name = self._word().lower()
        if name == "array" and self.takes("<"):
            item = self.type(column)
            self._expect(">")
            return pa.list_(item)
        if name == "struct" and self.takes("<"):
            fields = [self.field(f"{column}.")]
            while self.takes(","):
                fields.append(self.field(f"{column}."))
            self._expect(">")
            return pa.struct(fields)
        if name in ("decimal", "dec", "numeric") and self.takes("("):
            precision, scale = self._number(), 0
            if self.takes(","):
                scale = self._number()
            self._expect(")")
            return pa.decimal128(precision, scale)
        if name in ("varchar", "char") and self.takes("("):
            self._number()
            self._expect(")")
            return pa.string()
        if name in _SIMPLE:
            return _SIMPLE[name]
        with suppress(ValueError):
            return pa.type_for_alias(name)  # Arrow's names, such as int64
        raise not_a_type(column, self.tokens[self.at - 1])

    def _word(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at] in "<>(),:":
            raise self._problem()
        self.at += 1
        return self.tokens[self.at - 1]

    def _number(self) -> int:
        word = self._word()
        if not word.isdecimal() or not 0 <= int(word) <= 38:
            raise self._problem()
        return int(word)

    def _expect(self, token: str) -> None:
        if not self.takes(token):
            raise self._problem()

    def _problem(self) -> BadData:
        return _not_a_schema(self.text, " ".join(self.tokens[self.at :]) or "the end")
