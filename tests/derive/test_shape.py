"""Which transform keys a step has, what its inputs have of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.derive.key_shape import KeyShape, OutputKeys
from floodmark.errors import BadStep
from floodmark.transforms.key_resolution import resolve_shape
from floodmark.transforms.specs import InputSpec, Required, as_input, snapshot_inputs


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def _resolve(lake: Lake, *inputs: object, keys: object = None, outputs: tuple[OutputKeys, ...] = ()) -> KeyShape | None:
    specs = [as_input(i) for i in inputs]
    return resolve_shape(snapshot_inputs(lake, specs), specs, keys, outputs)  # type: ignore[arg-type]


def _shape(lake: Lake, *inputs: object, keys: object = None, outputs: tuple[OutputKeys, ...] = ()) -> KeyShape:
    found = _resolve(lake, *inputs, keys=keys, outputs=outputs)
    assert found is not None
    return found


def test_keys_that_all_share_are_the_transform_keys_in_the_order_of_the_first_input(lake: Lake) -> None:
    lake.create("a", key=["day", "user", "n"], schema={"n": "int64", "day": "date32", "user": "string"})
    lake.create("b", key=["user", "day"], schema={"user": "string", "day": "date32"})
    found = _shape(lake, "a", "b", outputs=(OutputKeys("out", ("user", "day", "x")), OutputKeys("new")))
    assert found.names == ("day", "user")
    assert found.kind == "keyed"


def test_one_input_by_its_own_key_is_a_map_whatever_its_columns_are_called(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int64", "v": "string"})
    assert _shape(lake, "a").kind == "map"
    assert _shape(lake, InputSpec("a", keys={"k": "id"}), keys=["k"]).kind == "map"
    assert _shape(lake, "a", keys=["v"]).kind == "keyed"


def test_inputs_that_share_nothing_are_crossed(lake: Lake) -> None:
    lake.create("a", key=["x"], schema={"x": "int64"})
    lake.create("b", key=["y"], schema={"y": "int64"})
    found = _shape(lake, "a", "b")
    assert (found.names, found.kind) == (("x", "y"), "cross")


def test_a_key_has_the_type_that_holds_the_values_of_all_inputs(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int32"})
    lake.create("b", key=["id"], schema={"id": "int64"})
    assert _shape(lake, "a", "b").keys == pa.schema([("id", pa.int64())])


def test_a_key_keeps_the_type_that_an_output_has_already(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int64"})
    out = OutputKeys("out", ("id",), pa.schema([("id", pa.int32())]))
    assert _shape(lake, "a", outputs=(out,)).keys == pa.schema([("id", pa.int32())])


def test_keys_of_different_kinds_are_refused(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int64"})
    lake.create("b", key=["id"], schema={"id": "string"})
    with pytest.raises(BadStep, match="int64 in 'a' and string in 'b'"):
        _resolve(lake, "a", "b")


def test_without_columns_for_every_key_there_is_nothing_to_do_yet(lake: Lake) -> None:
    lake.create("a", key=["id"])
    assert _resolve(lake, "a") is None
    lake.create("b", key=["id"], schema={"id": "int64"})
    found = _shape(lake, "a", "b")
    assert found.inputs[0].is_full
    assert found.inputs[0].columns == pa.schema([("id", pa.int64())])


def test_an_append_only_input_needs_transform_keys(lake: Lake) -> None:
    lake.create("a", schema={"g": "int64"})
    with pytest.raises(BadStep, match="append-only"):
        _resolve(lake, "a")
    assert _shape(lake, "a", keys="g").kind == "keyed"


@pytest.mark.parametrize(
    ("columns", "keys", "said"),
    [
        ((["x"], ["y"]), ["x", "z"], "no input has 'z'"),
        ((["x", "y"], ["y", "z"]), ["x", "y", "z"], "'a' and 'b' have 'y', but neither"),
        ((["x"], ["y"]), ["x", "y", "z"], "no input has 'z'"),
        ((["x"], ["x"]), ["x", "x"], "twice"),
    ],
)
def test_keys_that_make_neither_a_join_nor_a_cross_join_are_refused(
    lake: Lake, columns: tuple[list[str], list[str]], keys: list[str], said: str
) -> None:
    for name, mine in zip(("a", "b"), columns, strict=True):
        lake.create(name, key=mine[0], schema=dict.fromkeys(mine, "int64"))
    with pytest.raises(BadStep, match=said):
        _resolve(lake, "a", "b", keys=keys)


def test_inputs_with_the_same_keys_are_joined_and_the_results_are_crossed(lake: Lake) -> None:
    lake.create("item", key=["i"], schema={"i": "int64", "cat": "int64"})
    lake.create("item2", key=["n"], schema={"i": "int64", "cat": "int64", "n": "int64"})
    lake.create("cats", key=["cat"], schema={"cat": "int64"})
    lake.create("pipeline", key=["p"], schema={"p": "int64"})
    found = _shape(lake, "cats", "item", "item2", "pipeline", keys=["i", "cat", "p"])
    assert (found.kind, found.sides) == ("cross", ((1, 2), (3,)))
    assert [given.side for given in found.inputs] == [None, 0, 0, 1]


def test_an_input_without_transform_keys_is_passed_whole(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int64"})
    lake.create("words", key=["word"], schema={"word": "string"})
    found = _shape(lake, "words", "a", keys=["id"])
    assert (found.kind, found.sides, found.inputs[0].part) == ("keyed", ((1,),), ())
    assert found.part_of(0, pa.table({"word": ["x", "y"]})).num_rows == 2


def test_an_output_whose_key_has_no_transform_key_gets_them_all_unless_users_made_it(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int64"})
    assert _shape(lake, "a", keys=["id"], outputs=(OutputKeys("out", ("other",)),)).names == ("id",)
    with pytest.raises(BadStep, match="no transform key is in the keys of all outputs: 'out' has other"):
        _resolve(lake, "a", keys=["id"], outputs=(OutputKeys("out", ("other",), is_fixed=True),))


def test_transform_keys_that_an_output_lacks_only_group_the_rows_of_a_call(lake: Lake) -> None:
    lake.create("a", key=["id", "g"], schema={"id": "int64", "g": "int64"})
    found = _shape(lake, "a", keys=["id", "g"], outputs=(OutputKeys("out", ("g",)), OutputKeys("all")))
    assert (found.names, found.kind, found.joins.names) == (("g",), "keyed", [])
    found = _shape(lake, "a", keys=["id", "g"], outputs=(OutputKeys("out", ("g", "id", "x")),))
    assert (found.names, found.kind) == (("id", "g"), "map")


def test_an_input_by_columns_that_are_in_no_output_is_looked_up_through_the_rows_that_have_them(lake: Lake) -> None:
    lake.create("follows", key=["id"], schema={"id": "int64", "leader": "int64", "follower": "int32"})
    lake.create("users", key=["user"], schema={"user": "int64", "name": "string"})
    users = [InputSpec("users", keys={name: "user"}) for name in ("leader", "follower")]
    of_output = (OutputKeys("out", ("id",)),)
    for keys in (["id"], ["id", "leader", "follower"]):
        found = _shape(lake, "follows", *users, keys=keys, outputs=of_output)
        assert (found.names, found.kind, found.sides) == (("id",), "keyed", ((0,),))
        assert [given.through for given in found.inputs] == [(), (0,), (0,)]
        assert found.joins == pa.schema([("leader", pa.int64()), ("follower", pa.int64())]) or keys == ["id"]
    with pytest.raises(BadStep, match="which is no transform key and in no other input"):
        _resolve(lake, "follows", InputSpec("users", keys={"leder": "user"}), keys=["id"])


def test_aliases_of_no_key_or_no_column_are_refused_with_what_there_is(lake: Lake) -> None:
    lake.create("a", key=["id"], schema={"id": "int64"})
    with pytest.raises(BadStep, match="did you mean 'image'"):
        _resolve(lake, InputSpec("a", keys={"imag": "id"}), keys=["image"])
    with pytest.raises(BadStep, match="no column 'ident'"):
        _resolve(lake, InputSpec("a", keys={"image": "ident"}), keys=["image"])


def test_chosen_columns_come_with_the_keys_and_computed_or_unknown_ones_are_refused(lake: Lake) -> None:
    a = lake.create("a", key=["id"], schema={"v": "int64", "w": "int64", "id": "int64"})
    assert _shape(lake, InputSpec(a, columns=["w"])).inputs[0].columns.names == ["id", "w"]
    with pytest.raises(BadStep, match="no column 'q'"):
        snapshot_inputs(lake, [InputSpec("a", columns=["q"])])


def test_required_says_so_of_whatever_it_is_given() -> None:
    assert Required("a") == InputSpec("a", required=True)
    assert Required(InputSpec("a", keys={"k": "id"}), columns=["v"]) == InputSpec("a", {"k": "id"}, ["v"], True)
    with pytest.raises(BadStep, match="not a dataset"):
        Required(7)
