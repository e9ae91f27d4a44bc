"""Random histories: both changelists agree with each other and with an oracle that looks at every record."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark import Lake
from floodmark.transforms.specs import InputSpec, Required
from limits import set_limit
from profiles import IN_FULL, sample, seeds
from transforms.changing import World, choices, world

Step = Callable[[random.Random], None]


def _table(rows: list[dict[str, object]], **types: pa.DataType) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(types.items())))


def _upserts(lake: Lake, name: str, key: list[str], lookup: list[str] | None, **types: pa.DataType) -> Step:
    """A keyed dataset of few keys that are written, moved between groups and deleted."""
    lake.create(name, key=key, lookup=lookup)

    def step(seed: random.Random) -> None:
        def value(column: str) -> object:
            return None if column not in key and seed.random() < 0.2 else seed.randrange(4)

        rows = [{column: value(column) for column in types} for _ in range(seed.randrange(1, 5))]
        once = {tuple(row[c] for c in key): row for row in rows}
        if seed.random() < 0.35 and lake[name].schema is not None:
            lake[name].delete([{c: row[c] for c in key} for row in once.values()])
        else:
            lake[name].write(_table(list(once.values()), **types))

    return step


def _appends(lake: Lake, name: str, **types: pa.DataType) -> Step:
    lake.create(name)

    def step(seed: random.Random) -> None:
        rows = [{column: seed.choice([None, 0, 1, 2]) for column in types} for _ in range(seed.randrange(1, 3))]
        lake[name].write(_table(rows, **types))

    return step


INT, SHORT = pa.int64(), pa.int32()
STEPS = 60 if IN_FULL else 9


def _map(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [_upserts(lake, "a", ["id"], None, id=INT, v=INT)]
    return world(lake, folder, ["k"], InputSpec("a", keys={"k": "id"})), steps


def _aggregation(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    return world(lake, folder, ["g"], "a"), [_upserts(lake, "a", ["id"], None, id=INT, g=INT, v=INT)]


def _aggregation_by_prefix(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    return world(lake, folder, ["g"], "a"), [_upserts(lake, "a", ["g", "id"], ["g"], g=INT, id=INT, v=INT)]


def _appended(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    return world(lake, folder, ["g", "h"], "a"), [_appends(lake, "a", g=INT, h=INT, v=INT)]


def _join(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "a", ["id"], None, id=SHORT, v=INT),
        _upserts(lake, "b", ["other"], None, other=INT, v=INT),
    ]
    return world(lake, folder, ["id"], "a", InputSpec("b", keys={"id": "other"})), steps


def _required(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [_upserts(lake, n, ["id"], None, id=INT, v=INT) for n in ("a", "b")]
    return world(lake, folder, ["id"], "a", Required("b")), steps


def _partial(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "orders", ["id"], None, id=INT, user=INT, v=INT),
        _upserts(lake, "users", ["user"], None, user=INT, v=INT),
    ]
    return world(lake, folder, ["id", "user"], "orders", "users"), steps


def _partial_required_by_prefix(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "orders", ["user", "id"], ["user"], user=INT, id=INT, v=INT),
        _upserts(lake, "users", ["who"], None, who=SHORT, v=INT),
        _appends(lake, "more", user=INT, id=INT),
    ]
    spec = Required("users", keys={"user": "who"})
    return world(lake, folder, ["id", "user"], "orders", spec, "more"), steps


def _cross(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "a", ["x"], None, x=INT, v=INT),
        _upserts(lake, "b", ["y", "id"], ["y"], y=INT, id=INT, v=INT),
    ]
    return world(lake, folder, ["x", "y"], "a", "b"), steps


def _cross_of_three(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [_upserts(lake, n, [n], None, **{n: INT, "v": INT}) for n in ("x", "y", "z")]
    return world(lake, folder, ["y", "x", "z"], "x", "y", "z"), steps


def _join_of_a_cross(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "item", ["i"], None, i=INT, v=INT),
        _upserts(lake, "item2", ["i2", "id"], ["i2"], i2=INT, id=INT, v=INT),
        _upserts(lake, "pipeline", ["p"], None, p=INT, v=INT),
    ]
    return world(lake, folder, ["i", "p"], "item", InputSpec("item2", keys={"i": "i2"}), "pipeline"), steps


def _cross_with_lookup(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "item", ["id"], None, id=INT, cat=INT, v=INT),
        _upserts(lake, "cats", ["cat"], None, cat=INT, v=INT),
        _upserts(lake, "pipeline", ["p"], None, p=INT, v=INT),
        _upserts(lake, "other", ["p"], None, p=SHORT, v=INT),
    ]
    return world(lake, folder, ["id", "p", "cat"], "item", Required("cats"), "pipeline", Required("other")), steps


def _looked_up_twice(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "follows", ["id"], None, id=INT, follower=INT, leader=INT),
        _upserts(lake, "users", ["user"], None, user=INT, v=INT),
    ]
    users = [InputSpec("users", keys={name: "user"}) for name in ("leader", "follower")]
    return world(lake, folder, ["id", "follower", "leader"], "follows", *users), steps


def _auxiliary(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "a", ["id"], None, id=INT, v=INT),
        _upserts(lake, "b", ["id", "j"], ["id"], id=INT, j=INT, v=INT),
        _upserts(lake, "words", ["word"], None, word=INT, v=INT),
    ]
    return world(lake, folder, ["id"], "a", "b", "words"), steps


def _auxiliary_of_a_cross(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "item", ["i"], None, i=INT, v=INT),
        _upserts(lake, "pipeline", ["p"], None, p=INT, v=INT),
        _appends(lake, "words", word=INT),
        _upserts(lake, "must", ["word"], None, word=INT, v=INT),
    ]
    return world(lake, folder, ["i", "p"], "words", "item", "pipeline", Required("must")), steps


def _coarse(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    """The output has the group only, not the keys of its members."""
    steps = [
        _upserts(lake, "a", ["id", "g"], None, id=INT, g=INT, v=INT),
        _upserts(lake, "b", ["id"], None, id=INT, g=INT, v=INT),
        _upserts(lake, "groups", ["g"], None, g=SHORT, v=INT),
    ]
    return world(lake, folder, ["id", "g"], "a", "b", "groups", keys=["g"]), steps


def _coarse_cross(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "item", ["i"], None, i=INT, v=INT),
        _upserts(lake, "pipeline", ["p"], None, p=INT, v=INT),
        _upserts(lake, "other", ["q"], None, q=INT, v=INT),
    ]
    return world(lake, folder, ["i", "p", "q"], "pipeline", "item", "other", keys=["i"]), steps


def _follows(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "follows", ["id"], None, id=INT, follower=INT, leader=INT),
        _upserts(lake, "users", ["user"], None, user=SHORT, v=INT),
    ]
    users = [InputSpec("users", keys={name: "user"}) for name in ("leader", "follower")]
    return world(lake, folder, ["id"], "follows", *users), steps


def _join_keys(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    """Groups with several members, of two sources, each looked up by their own columns."""
    steps = [
        _upserts(lake, "a", ["g", "id"], ["g"], g=INT, id=INT, cat=INT),
        _upserts(lake, "b", ["n"], None, n=INT, g=INT, id=INT, cat=INT),
        _upserts(lake, "cats", ["cat", "m"], ["cat"], cat=INT, m=INT),
        _upserts(lake, "notes", ["k"], None, k=INT, g=INT, cat=INT),
    ]
    inputs = ["notes", Required("cats"), "a", "b"]
    return world(lake, folder, ["g", "id", "cat"], *inputs, keys=["g"]), steps


def _join_keys_of_a_cross(lake: Lake, folder: Path) -> tuple[World, list[Step]]:
    steps = [
        _upserts(lake, "item", ["i"], None, i=INT, cat=INT),
        _upserts(lake, "cats", ["cat"], None, cat=INT, v=INT),
        _upserts(lake, "pipeline", ["p"], None, p=INT, model=INT),
        _upserts(lake, "models", ["model"], None, model=INT, v=INT),
    ]
    inputs = ["item", InputSpec("cats", keys={"cat": "cat"}), "pipeline", InputSpec("models", keys={"model": "model"})]
    return world(lake, folder, ["i", "p"], *inputs), steps


KINDS = [
    _map,
    _aggregation,
    _aggregation_by_prefix,
    _appended,
    _join,
    _required,
    _partial,
    _partial_required_by_prefix,
    _cross,
    _cross_of_three,
    _join_of_a_cross,
    _cross_with_lookup,
    _looked_up_twice,
    _auxiliary,
    _auxiliary_of_a_cross,
    _coarse,
    _coarse_cross,
    _follows,
    _join_keys,
    _join_keys_of_a_cross,
]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("make", "way"),
    sample(itertools.product(KINDS, ["index", "scan"]), 4),
    ids=lambda one: one if isinstance(one, str) else one.__name__.strip("_"),
)
def test_whatever_happens_both_changelists_list_what_changed_and_chunks_hold_it(
    tmp_path: Path, make: Callable[..., tuple[World, list[Step]]], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "scan":
        set_limit(monkeypatch, "gather.few_rows", -1)
        set_limit(monkeypatch, "gather.row_by_key", 1000000000.0)
    seed = random.Random(f"{make.__name__}{way}{seeds(1)[0]}")
    made, steps = make(Lake(tmp_path / "lake"), tmp_path / "room")
    runs = choices(made.keys, seed)
    for number in range(STEPS):
        (steps[number] if number < len(steps) else seed.choice(steps))(seed)
        if seed.random() < 0.5 and made.shape() is not None:
            made.run(next(runs), chunk_size=seed.choice([1, 2, 3, 100]))
    made.run()
    assert len(made.changelist(2)) == 0
    assert len(made.changelist(1)) == 0
