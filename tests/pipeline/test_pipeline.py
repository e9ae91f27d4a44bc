"""A pipeline has steps by name, and refuses what is none."""

from __future__ import annotations

import pytest

from floodmark.errors import BadStep, UnknownStep
from floodmark.pipeline.pipeline import Pipeline
from floodmark.sources.generators import BatchGenerate
from floodmark.sources.update_external_table import UpdateExternalTable
from floodmark.transforms.step import Step


class Idle(Step):
    """A step that does nothing."""

    def run(self, lake):
        return None


def idle(name: str, **labels: str) -> Idle:
    return Idle(name, [], [f"{name}_out"], labels)


def test_steps_are_found_by_name_and_come_in_the_order_of_their_declaration():
    pipeline = Pipeline([idle("b"), idle("a")])
    assert pipeline.names == ["b", "a"]
    assert [step.name for step in pipeline] == ["b", "a"]
    assert len(pipeline) == 2
    assert pipeline["a"].name == "a"
    assert "a" in pipeline
    assert "c" not in pipeline


def test_an_unknown_step_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownStep, match="did you mean 'features'") as caught:
        Pipeline([idle("features"), idle("labels")])["feature"]
    assert caught.value.name == "feature"


def test_an_unknown_step_that_is_like_none_is_refused_with_all_names():
    with pytest.raises(UnknownStep, match="its steps are features, labels"):
        Pipeline([idle("features"), idle("labels")])["zzz"]


def test_labels_choose_steps_that_have_all_of_them():
    pipeline = Pipeline([idle("a", stage="train", team="x"), idle("b", stage="train"), idle("c")])
    assert pipeline.labelled({"stage": "train"}).names == ["a", "b"]
    assert pipeline.labelled({"stage": "train", "team": "x"}).names == ["a"]
    assert pipeline.labelled({"stage": "test"}).names == []
    assert pipeline.labelled({}).names == ["a", "b", "c"]


def test_two_steps_of_one_name_are_refused():
    with pytest.raises(BadStep, match="two steps of the pipeline are named 'a'"):
        Pipeline([idle("a"), idle("b"), idle("a")])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([idle("a"), "b"], "item 2 of the pipeline is not a step: 'b'"),
        ([print], "item 1 of the pipeline is not a step"),
        ([Idle], r"create an instance: Idle\(…\)"),
        ([[idle("a")]], r"unpack a list of steps with \*"),
        ([None], "item 1 of the pipeline is not a step: None"),
        (idle("a"), "put it in a list"),
        (7, "a pipeline takes a list of steps, not 7"),
        ("abc", "a pipeline takes a list of steps"),
    ],
)
def test_what_is_no_step_is_refused_with_its_number(given, complaint):
    with pytest.raises(BadStep, match=complaint):
        Pipeline(given)


def test_a_pipeline_without_steps_is_one():
    assert Pipeline([]).names == []


def _rows():
    return []


def test_two_steps_that_would_undo_each_others_work_are_refused():
    one = BatchGenerate(_rows, ["files"], name="one")
    adding = BatchGenerate(_rows, ["labels", "Files"], delete_stale=False, name="adding")
    with pytest.raises(BadStep, match="steps 'one' and 'adding' of the pipeline both write 'files'"):
        Pipeline([one, adding])


def test_steps_that_only_add_rows_may_share_an_output():
    steps = [BatchGenerate(_rows, ["files"], delete_stale=False, name=name) for name in ("one", "two")]
    steps.append(UpdateExternalTable("files", "sqlite:///shop.db#files"))
    assert Pipeline(steps).names == ["one", "two", "update_files"]


def test_what_is_no_name_is_the_name_of_no_step():
    with pytest.raises(UnknownStep, match="no step 5"):
        Pipeline([idle("a")])[5]
