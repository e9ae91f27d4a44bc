"""Schemas in the old raw form are accepted from elsewhere, have the same rules, and give way to the new form."""

from dataclasses import replace

import pyarrow as pa
import pytest

from chain.arrow_schemas import raw_schema
from chain.refusals import refused
from chain.strategies import ROOT, SCHEMA, Model, a_slice
from floodmark import errors
from floodmark.chain import rules
from floodmark.chain import schema as s
from floodmark.chain.events import AddData, SetDataSchema
from floodmark.chain.state import EMPTY, apply_block
from floodmark.chain.walk import check_chain

COLUMNS = pa.schema([pa.field("offset", pa.int64(), False), pa.field("name", pa.string())])
OLD = SetDataSchema(raw_schema(COLUMNS))
SAME = s.DataSchema(
    (s.DataField("offset", s.DataTypeInt64()), s.DataField("name", s.DataTypeOption(s.DataTypeString())))
)


def chain(*events) -> Model:
    model = Model(ROOT)
    model.seed()
    for event in events:
        model.add(event)
    return model


def state_of(blocks):
    state = EMPTY
    for hash_, block in blocks:
        state = apply_block(state, hash_, block)
    return state


def with_column(name, type_, nullable=True):
    return SetDataSchema(raw_schema(COLUMNS.append(pa.field(name, type_, nullable))))


def test_old_schema_has_columns():
    assert state_of(chain(OLD).blocks).schema == SAME


@pytest.mark.parametrize(
    "new",
    [
        SetDataSchema(schema=SAME),
        SetDataSchema(schema=replace(SAME, fields=SAME.fields[::-1])),
        with_column("c", pa.int8()),
    ],
    ids=["the same columns", "other order", "old form with one more column"],
)
def test_data_may_follow_an_old_schema_and_another_one_may_replace_it(new):
    data = AddData(new_data=a_slice(0, 4))
    assert list(check_chain(chain(OLD, data, new).blocks)) == []


def test_first_schema_with_two_fields_of_one_name_is_refused():
    twice = replace(SCHEMA, fields=SCHEMA.fields * 2)
    (problem,) = check_chain(chain(SetDataSchema(schema=twice)).blocks)
    assert problem.rule is errors.Rule.DUPLICATE_FIELD
    assert problem.sequence_number == 1


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        (OLD, OLD, errors.Rule.SCHEMA_UNCHANGED),
        (SetDataSchema(schema=SAME), OLD, errors.Rule.SCHEMA_MISSING),
        (OLD, SetDataSchema(), errors.Rule.SCHEMA_MISSING),
        (OLD, SetDataSchema(b"arrow"), errors.Rule.SCHEMA_MISSING),
        (OLD, with_column("c", pa.int8(), nullable=False), errors.Rule.NEW_FIELD_REQUIRED),
        (OLD, SetDataSchema(schema=s.DataSchema(SAME.fields[:1])), errors.Rule.FIELD_REMOVED),
        (with_column("c", pa.int8()), OLD, errors.Rule.FIELD_REMOVED),
        (with_column("c", pa.int8()), with_column("c", pa.int16()), errors.Rule.FIELD_TYPE_CHANGED),
    ],
)
def test_change_of_an_old_schema_has_the_same_rules(first, second, rule):
    model = chain(first, second)
    with refused(rule):
        rules.check(state_of(model.blocks[:-1]), model.blocks[-1][1])


@pytest.mark.parametrize("raw", [b"arrow", b"", raw_schema(pa.schema({"i": pa.month_day_nano_interval()}))])
def test_old_schema_that_cannot_be_read_is_refused(raw):
    (problem,) = check_chain(chain(SetDataSchema(raw)).blocks)
    assert problem.rule is errors.Rule.SCHEMA_MISSING


def test_first_old_schema_with_two_fields_of_one_name_is_refused():
    (problem,) = check_chain(chain(SetDataSchema(raw_schema(pa.schema([*COLUMNS, *COLUMNS])))).blocks)
    assert problem.rule is errors.Rule.DUPLICATE_FIELD
