"""`why_forward` is `why` read the other way round: exactly the records that name a record among their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.provenance.forward import forward
from floodmark.provenance.tree import build_forward_tree, render_lines
from transforms.worlds import MAP, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def _doubled(lake: fm.Lake) -> fm.BatchTransform:
    return fm.BatchTransform(_double, inputs=["out"], outputs=["twice"], name="double", version="1")


def _double(out):  # type: ignore[no-untyped-def]
    return out.assign(w=out["w"] * 2)


def test_it_goes_on_to_what_was_made_of_what_was_made_of_it(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    _doubled(world.lake).run(world.lake)
    world.write("a", (1, 5))
    world.run()

    found = forward(world.lake, "a", 0)

    [first] = found.derived
    assert (first.record.dataset, first.record.offset, first.is_current) == ("out", 0, False)
    [second] = first.derived
    assert (second.record.dataset, second.record.values, second.is_current) == ("twice", {"id": 1, "w": 20}, True)
    assert found.waiting == ()
    back = world.lake.why("twice", second.record.offset)
    assert back.offsets() == {"out": {0}, "a": {0}}


def test_a_record_that_nobody_has_read_yet_is_waited_for(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.write("a", (2, 2))

    found = forward(world.lake, "a", 1)

    assert (found.derived, found.waiting) == ((), ("out",))


def test_a_table_made_of_all_rows_need_not_have_a_column_of_theirs(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))

    def total(a: pa.Table) -> pa.Table:
        return pa.table({"k": [1], "s": [sum(a["v"].to_pylist())]})

    step = fm.DatatableTransform(total, inputs=["a"], outputs=[fm.OutputSpec("sums", key=["k"])])
    step.run(world.lake)

    found = forward(world.lake, "a", {"id": 1})

    assert found.derived == ()
    assert [(one.dataset, one.transactions) for one in found.wholes] == [("sums", 1)]


def test_a_record_that_no_step_reads_has_one_line_that_says_so(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("a", key="id").write(pa.table({"id": [1]}))

    shown = list(render_lines(build_forward_tree(forward(lake, "a", 0))))

    assert [line for line in shown if "nothing was made from it" in line]
