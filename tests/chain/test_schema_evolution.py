"""A schema may gain optional fields and change their order; everything else is refused and named."""

from dataclasses import replace

import pytest

from chain.refusals import refused
from floodmark import errors
from floodmark.chain import schema as s
from floodmark.chain.schema import check_evolution, describe

INT, TEXT = s.DataTypeInt64(), s.DataTypeString()
OPTION = s.DataTypeOption


def fields(**types: s.DataType) -> tuple[s.DataField, ...]:
    return tuple(s.DataField(name, type_) for name, type_ in types.items())


def schema(**types: s.DataType) -> s.DataSchema:
    return s.DataSchema(fields(**types))


OLD = schema(a=INT, b=OPTION(TEXT))
STRUCT = OPTION(s.DataTypeStruct(fields(x=INT, y=OPTION(TEXT))))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, schema(b=OPTION(TEXT), a=INT)),
        (OLD, schema(a=INT, b=OPTION(TEXT), c=OPTION(INT))),
        (OLD, schema(c=OPTION(INT), b=OPTION(TEXT), a=INT)),
        (OLD, replace(OLD, extra=s.ExtraAttributes.of({"note": 1}))),
        (schema(n=STRUCT), schema(n=OPTION(s.DataTypeStruct(fields(y=OPTION(TEXT), x=INT, z=OPTION(INT)))))),
        (
            schema(n=s.DataTypeList(s.DataTypeStruct(fields(x=INT)))),
            schema(n=s.DataTypeList(s.DataTypeStruct(fields(x=INT, y=OPTION(INT))))),
        ),
        (
            schema(n=s.DataTypeMap(TEXT, s.DataTypeStruct(fields(x=INT)))),
            schema(n=s.DataTypeMap(TEXT, s.DataTypeStruct(fields(y=OPTION(INT), x=INT)))),
        ),
    ],
)
def test_optional_fields_and_reordering_are_allowed(old, new):
    check_evolution(old, new)


@pytest.mark.parametrize(
    ("old", "new", "rule", "field"),
    [
        (OLD, schema(a=INT), errors.Rule.FIELD_REMOVED, "b"),
        (OLD, schema(a=TEXT, b=OPTION(TEXT)), errors.Rule.FIELD_TYPE_CHANGED, "a"),
        (OLD, schema(a=OPTION(TEXT), b=OPTION(TEXT)), errors.Rule.FIELD_TYPE_CHANGED, "a"),
        (OLD, schema(a=OPTION(INT), b=OPTION(TEXT)), errors.Rule.FIELD_OPTIONALITY_CHANGED, "a"),
        (OLD, schema(a=INT, b=TEXT), errors.Rule.FIELD_OPTIONALITY_CHANGED, "b"),
        (OLD, schema(a=INT, b=OPTION(OPTION(TEXT))), errors.Rule.FIELD_TYPE_CHANGED, "b"),
        (OLD, schema(a=INT, b=OPTION(TEXT), c=INT), errors.Rule.NEW_FIELD_REQUIRED, "c"),
        (OLD, s.DataSchema(OLD.fields + OLD.fields[:1]), errors.Rule.DUPLICATE_FIELD, "a"),
        (schema(n=STRUCT), schema(n=OPTION(s.DataTypeStruct(fields(x=INT)))), errors.Rule.FIELD_REMOVED, "n.y"),
        (
            schema(n=s.DataTypeList(s.DataTypeStruct(fields(x=INT)))),
            schema(n=s.DataTypeList(s.DataTypeStruct(fields(x=INT, y=INT)))),
            errors.Rule.NEW_FIELD_REQUIRED,
            "n[].y",
        ),
        (schema(n=s.DataTypeList(INT)), schema(n=s.DataTypeList(TEXT)), errors.Rule.FIELD_TYPE_CHANGED, "n[]"),
        (schema(n=s.DataTypeList(INT)), schema(n=s.DataTypeList(INT, 3)), errors.Rule.FIELD_TYPE_CHANGED, "n"),
        (
            schema(n=s.DataTypeMap(TEXT, INT)),
            schema(n=s.DataTypeMap(TEXT, OPTION(INT))),
            errors.Rule.FIELD_OPTIONALITY_CHANGED,
            "n{value}",
        ),
        (
            schema(n=s.DataTypeMap(TEXT, INT)),
            schema(n=s.DataTypeMap(INT, INT)),
            errors.Rule.FIELD_TYPE_CHANGED,
            "n{key}",
        ),
        (
            schema(n=s.DataTypeMap(TEXT, INT)),
            schema(n=s.DataTypeMap(TEXT, INT, True)),
            errors.Rule.FIELD_TYPE_CHANGED,
            "n",
        ),
        (
            schema(t=s.DataTypeTimestamp(s.TimeUnit.MILLISECOND, "UTC")),
            schema(t=s.DataTypeTimestamp(s.TimeUnit.MICROSECOND, "UTC")),
            errors.Rule.FIELD_TYPE_CHANGED,
            "t",
        ),
        (
            schema(n=OPTION(OPTION(INT))),
            schema(n=OPTION(OPTION(TEXT))),
            errors.Rule.FIELD_TYPE_CHANGED,
            "n",
        ),
        (
            schema(a=INT),
            schema(a=INT, n=OPTION(s.DataTypeStruct(fields(x=INT) + fields(x=INT)))),
            errors.Rule.DUPLICATE_FIELD,
            "n.x",
        ),
    ],
)
def test_other_changes_are_refused_and_name_the_field(old, new, rule, field):
    with refused(rule, match=f"'{field}'".replace("[", r"\[")) as raised:
        check_evolution(old, new)
    assert raised.value.field == field
    assert raised.value.hint


def test_identical_schema_is_refused():
    with refused(errors.Rule.SCHEMA_UNCHANGED):
        check_evolution(OLD, schema(a=INT, b=OPTION(TEXT)))


def test_message_says_what_the_type_was_and_is():
    with refused(errors.Rule.FIELD_TYPE_CHANGED, match=r"Field 'a' was Int64 and is Option<String> now\."):
        check_evolution(schema(a=INT), schema(a=OPTION(TEXT)))


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (s.DataTypeDecimal(10, 2), "Decimal(10, 2)"),
        (s.DataTypeTimestamp(s.TimeUnit.MILLISECOND, "UTC"), "Timestamp(MILLISECOND, UTC)"),
        (s.DataTypeTimestamp(), "Timestamp"),
        (OPTION(s.DataTypeList(TEXT)), "Option<List<String>>"),
        (s.DataTypeList(TEXT, 3), "List<String, 3>"),
        (s.DataTypeMap(TEXT, INT), "Map<String, Int64>"),
        (s.DataTypeStruct(fields(x=INT)), "Struct<x: Int64>"),
    ],
)
def test_types_are_described_as_people_write_them(type_, text):
    assert describe(type_) == text
