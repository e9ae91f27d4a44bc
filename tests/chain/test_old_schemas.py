"""Schemas in the old raw form are accepted from elsewhere, and give way to the new form."""

from dataclasses import replace

import pytest

from chain.strategies import ROOT, SCHEMA, Model, a_slice
from floodmark.chain import errors, rules
from floodmark.chain.events import AddData, SetDataSchema
from floodmark.chain.state import EMPTY, advance
from floodmark.chain.walk import check_chain


def chain(*events) -> Model:
    model = Model(ROOT)
    model.seed()
    for event in events:
        model.add(event)
    return model


def test_data_may_follow_an_old_schema_and_a_new_one_may_replace_it():
    old, data, new = SetDataSchema(b"arrow"), AddData(new_data=a_slice(0, 4)), SetDataSchema(schema=SCHEMA)
    assert list(check_chain(chain(old, data, new).blocks)) == []


def test_first_schema_with_two_fields_of_one_name_is_refused():
    twice = replace(SCHEMA, fields=SCHEMA.fields * 2)
    (problem,) = check_chain(chain(SetDataSchema(schema=twice)).blocks)
    assert isinstance(problem, errors.DuplicateField)
    assert problem.sequence_number == 1


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (SetDataSchema(b"arrow"), SetDataSchema(b"arrow"), errors.SchemaUnchanged),
        (SetDataSchema(schema=SCHEMA), SetDataSchema(b"arrow"), errors.SchemaMissing),
        (SetDataSchema(b"arrow"), SetDataSchema(), errors.SchemaMissing),
    ],
)
def test_old_form_does_not_come_back(first, second, error):
    model = chain(first, second)
    state = EMPTY
    for hash_, block in model.blocks[:-1]:
        state = advance(state, hash_, block)
    with pytest.raises(error):
        rules.check(state, model.blocks[-1][1])
