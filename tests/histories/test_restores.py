"""Any datasets of a graph are replaced by earlier copies of themselves: one good run makes what the sources then have.

A copy may be put in the place of a dataset, or over it, so that files of the lost records stay; computed columns may be
newer or older than their records. Steps, views and columns are copied and replaced like sources.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from histories.calls import in_this_process
from histories.pipelines import DATASETS, SOURCES, Drawn, Rows, World, without_spark
from histories.test_pipelines import acts, assert_good_run, assert_nothing_to_do, graphs, ids, perform, row
from profiles import examples

HOW = ("in its place", "over it", "without columns", "only columns")


@dataclass
class CopiedWorld(World):
    """A world whose datasets are copied, and replaced by these copies."""

    copies: list[dict[str, Rows]] = field(default_factory=list)  # the rows that the sources had

    def copy(self) -> None:
        shutil.copytree(self.folder / "lake" / "datasets", self.folder / "copies" / str(len(self.copies)))
        self.copies.append(copy.deepcopy(self.rows))

    def restore(self, number: int, chosen: int, how: str) -> None:
        """Replace some datasets, those whose bit is set in `chosen`, by a copy."""
        if not self.copies:
            return
        number %= len(self.copies)
        there = {each.name: each.snapshot().objects.folder.rpartition("/")[2] for each in self.lake()}
        for place, (name, folder) in enumerate(sorted(there.items())):
            source = self.folder / "copies" / str(number) / folder
            if not chosen >> (place % 8) & 1 or not source.exists():
                continue
            target = self.folder / "lake" / "datasets" / folder
            self._put_back(source, target, how)
            if how != "only columns" and name in DATASETS:
                self.rows[name] = dict(self.copies[number][name])

    def _put_back(self, source: Path, target: Path, how: str) -> None:
        parts = {
            "in its place": [""],
            "over it": [],
            "without columns": [part.name for part in {*source.iterdir(), *target.iterdir()} if part.name != "columns"],
            "only columns": ["columns"],
        }[how]
        for part in parts:
            shutil.rmtree(target / part, ignore_errors=True)
            if (source / part).is_file():
                (target / part).unlink(missing_ok=True)
                shutil.copy2(source / part, target / part)
            elif (source / part).exists():
                shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        if how == "over it":
            shutil.copytree(source, target, dirs_exist_ok=True)


restores = st.tuples(st.just("restore"), st.integers(0, 3), st.integers(1, 255), st.sampled_from(HOW))
steps = st.one_of(
    acts,
    acts,
    acts,
    st.tuples(st.just("run")),
    st.tuples(st.just("copy")),
    restores,
    restores,
)


def act_on(world: CopiedWorld, act: tuple[Any, ...]) -> None:
    match act:
        case ("copy",):
            world.copy()
        case ("restore", number, chosen, how):
            world.restore(number, chosen, how)
        case ("again", *_) | ("full",):
            world.run(1)  # a function that changes without a new version is not what this is about
        case _:
            perform(world, act, 1)


@settings(max_examples=examples(10), phases=[Phase.explicit, Phase.generate])
@given(
    graphs(),
    st.dictionaries(ids, row, min_size=3, max_size=6),
    st.lists(steps, min_size=4, max_size=10),
    restores,
)
def test_after_restores_of_any_datasets_a_good_run_makes_what_the_sources_lead_to(
    nodes: tuple[Drawn, ...], first: Rows, history: list[tuple[Any, ...]], last: tuple[Any, ...]
):
    with tempfile.TemporaryDirectory() as made, in_this_process(), without_spark(nodes, Path(made)):
        world = CopiedWorld(Path(made), nodes)
        for number in range(len(SOURCES)):
            perform(world, ("write", number, first), 1)
        for act in [("run",), ("copy",), *history, last]:
            act_on(world, act)
        world.mend()
        assert_good_run(world, 1)
        assert_nothing_to_do(world, 1)
