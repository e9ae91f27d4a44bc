"""A view's query over the datasets of a lake: which ones its names stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark import Lake
from floodmark.engine.session import Runtime, Session
from floodmark.errors import BadView, UnknownDataset
from floodmark.views.analyzer import analyse_for_lake
from floodmark.views.definition import ViewDefinition

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> Lake:
    made = Lake(tmp_path, runtime=Runtime(session=session))
    made.create("flights-1", key="id", schema={"id": "int64", "carrier": "string"})
    made.create("log", schema={"id": "int64", "said": "string"})
    return made


def of(sql: str) -> ViewDefinition:
    return ViewDefinition(sql=sql)


def test_names_stand_for_datasets_whatever_their_capitals(lake: Lake) -> None:
    analysis = analyse_for_lake(lake, of("select f.id, said from `FLIGHTS-1` f left join Log using (id)"))
    assert [(use.alias, use.dataset_id) for use in analysis.sources] == [
        ("FLIGHTS-1", str(lake["flights-1"].id)),
        ("Log", str(lake["log"].id)),
    ]
    twice = analyse_for_lake(lake, of("select a.id, b.said from log a join LOG b on a.id = b.id"))
    assert [use.alias for use in twice.sources] == ["log"]


def test_unknown_dataset_is_named_with_the_nearest_one(lake: Lake) -> None:
    with pytest.raises(UnknownDataset, match="logg") as caught:
        analyse_for_lake(lake, of("with c as (select 1 as id) select id from c join logg using (id)"))
    assert "'log'" in caught.value.hint


def test_view_cannot_read_itself(lake: Lake) -> None:
    with pytest.raises(BadView, match="would read itself"):
        analyse_for_lake(lake, of("select id, said from LOG"), view="log")


def test_renamed_dataset_is_found_by_what_is_known(lake: Lake) -> None:
    definition = of("select id, said from log")
    before = analyse_for_lake(lake, definition)
    lake.rename("log", "journal")
    lake.create("log", schema={"other": "int64"})
    assert analyse_for_lake(lake, definition, known=before) == before


def test_one_dataset_has_one_name_in_a_query(lake: Lake) -> None:
    before = analyse_for_lake(lake, of("select id, said from log"))
    lake.rename("log", "journal")
    with pytest.raises(BadView, match="'log' and 'journal' are the same dataset"):
        analyse_for_lake(lake, of("select a.id, b.said from log a join journal b on a.id = b.id"), known=before)
