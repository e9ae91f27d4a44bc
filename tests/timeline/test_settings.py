"""Settings of a timeline: declared when a dataset is created, kept on its chain, compared when it is opened again."""

from __future__ import annotations

import json
import pickle

import pytest

import floodmark as fm
from floodmark.chain.events import AttachmentEmbedded, AttachmentsEmbedded, SetAttachments
from floodmark.chain.state import EMPTY, ChainState
from floodmark.errors import BadOption, DatasetExists
from floodmark.ledger.strategy import APPEND, Strategy, strategy_of, to_attachments
from floodmark.storage.memory import MemoryStore
from floodmark.timeline.settings import LARGEST_ROW_GROUP_SIZE, Settings, declare, read_settings, settings_note


@pytest.fixture
def lake():
    return fm.Lake(MemoryStore())


def chain_with(text):
    own = AttachmentEmbedded("floodmark.json", text)
    return ChainState(attachments=SetAttachments(AttachmentsEmbedded((own,))))


def kept(dataset):
    return read_settings(dataset.snapshot().state)


def test_a_timeline_has_row_groups_of_100_000_rows_and_is_eager_unless_told():
    assert declare("day", None, None, None, "at") == Settings("day", 100_000, "auto", "eager")


def test_without_partition_by_there_is_no_timeline():
    assert declare(None, None, None, None, "at") is None
    assert declare(None, None, None, None, None) is None


@pytest.mark.parametrize("unit", ["hour", "day", "week", "month", "year"])
def test_every_unit_can_be_declared(unit):
    settings = declare(unit, 7, "always", "lazy", "at")
    assert settings == Settings(unit, 7, "always", "lazy")


@pytest.mark.parametrize(
    ("given", "setting", "hint"),
    [
        (("dya", None, None, None, "at"), "partition_by", "did you mean 'day'"),
        (("fortnight", None, None, None, "at"), "partition_by", "hour, day, week, month, year"),
        ((5, None, None, None, "at"), "partition_by", "hour, day, week, month, year"),
        ((["day"], None, None, None, "at"), "partition_by", "did you mean 'day'"),
        (("day", 0, None, None, "at"), "row_group_size", "leave it out"),
        (("day", -5, None, None, "at"), "row_group_size", "leave it out"),
        (("day", 1.5, None, None, "at"), "row_group_size", "leave it out"),
        (("day", True, None, None, "at"), "row_group_size", "leave it out"),
        (("day", "100", None, None, "at"), "row_group_size", "leave it out"),
        (("day", LARGEST_ROW_GROUP_SIZE + 1, None, None, "at"), "row_group_size", "leave it out"),
        (("day", None, "never", None, "at"), "late_merge", "auto, always"),
        (("day", None, None, "eagre", "at"), "timeline", "did you mean 'eager'"),
        (("day", None, None, None, None), "event_time", "event_time='at'"),
        ((None, 100, None, None, "at"), "row_group_size", "partition_by="),
        ((None, None, "always", None, "at"), "late_merge", "partition_by="),
        ((None, None, None, "lazy", "at"), "timeline", "partition_by="),
    ],
)
def test_nonsense_is_refused_with_a_hint(given, setting, hint):
    with pytest.raises(BadOption) as caught:
        declare(*given)
    assert caught.value.setting == setting
    assert hint in caught.value.hint
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.setting, again.given) == (str(caught.value), setting, caught.value.given)


def test_refused_settings_create_nothing(lake):
    with pytest.raises(BadOption):
        lake.create("ticks", event_time="at", partition_by="decade")
    assert "ticks" not in lake


@pytest.mark.parametrize("settings", [Settings("day"), Settings("week", 7, "always", "lazy")])
def test_the_chain_keeps_the_settings(settings):
    attached = to_attachments(APPEND, settings_note(settings))
    assert read_settings(ChainState(attachments=attached)) == settings


def test_a_lookup_prefix_and_a_timeline_are_kept_side_by_side(lake):
    lake.create("d", event_time="at", key=["a", "b"], lookup=["a"], partition_by="day", row_group_size=9)
    state = lake["d"].snapshot().state
    assert read_settings(state) == Settings("day", 9)
    assert strategy_of(state) == Strategy("upsert", ("a", "b"), None, ("a",))


def test_a_dataset_without_a_timeline_notes_nothing(lake):
    lake.create("d", event_time="at")
    assert lake["d"].snapshot().state.attachments is None
    assert kept(lake["d"]) is None


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        json.dumps({}),
        json.dumps({"timeline": "day", "row_group_size": 5}),
        json.dumps({"timeline": {"partition_by": "day", "late_merge": "auto", "mode": "eager"}}),
        json.dumps({"timeline": {"partition_by": "day"}, "row_group_size": 5}),
        json.dumps({"timeline": {"partition_by": "day", "late_merge": "auto", "mode": []}, "row_group_size": 5}),
        json.dumps({"timeline": {"partition_by": "era", "late_merge": "auto", "mode": "eager"}, "row_group_size": 5}),
        json.dumps({"timeline": {"partition_by": None, "late_merge": "auto", "mode": "eager"}, "row_group_size": 5}),
        json.dumps({"timeline": {"partition_by": "day", "late_merge": "auto", "mode": "eager"}, "row_group_size": "5"}),
    ],
)
def test_what_is_no_note_of_ours_is_no_timeline(text):
    assert read_settings(chain_with(text)) is None


def test_a_chain_without_attachments_has_no_timeline():
    assert read_settings(EMPTY) is None


def test_only_what_makes_a_layout_is_in_the_digest():
    digests = {Settings("day", 5).digest, Settings("week", 5).digest, Settings("day", 6).digest}
    assert len(digests) == 3
    assert Settings("day", 5, "always", "lazy").digest == Settings("day", 5).digest


def test_a_dataset_is_opened_again_with_the_settings_it_has(lake):
    first = lake.create("d", event_time="at", partition_by="day", row_group_size=5)
    again = lake.create("d", event_time="at", partition_by="day", row_group_size=5, exist_ok=True)
    assert again.id == first.id
    assert lake.create("d", exist_ok=True).id == first.id  # nothing declared, nothing to compare


@pytest.mark.parametrize(
    "other",
    [
        {"partition_by": "hour", "row_group_size": 5},
        {"partition_by": "day", "row_group_size": 6},
        {"partition_by": "day", "row_group_size": 5, "late_merge": "always"},
        {"partition_by": "day", "row_group_size": 5, "timeline": "lazy"},
    ],
)
def test_a_dataset_with_other_settings_is_not_opened(lake, other):
    lake.create("d", event_time="at", partition_by="day", row_group_size=5)
    with pytest.raises(DatasetExists, match="exists with partition_by='day', row_group_size=5") as caught:
        lake.create("d", event_time="at", exist_ok=True, **other)
    assert "leave out partition_by=" in caught.value.hint


def test_a_dataset_without_a_timeline_is_not_opened_as_one_that_has_it(lake):
    lake.create("d", event_time="at")
    with pytest.raises(DatasetExists, match="exists with no timeline"):
        lake.create("d", event_time="at", partition_by="day", exist_ok=True)
