"""Taking rows of a source into a dataset: opening it, writing, and what that came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from floodmark.ledger.errors import NothingToWrite
from floodmark.transform.report import RunReport

if TYPE_CHECKING:
    from floodmark.ledger.commit import Commit
    from floodmark.pipeline.declared import Dataset


def opened(lake: Any, name: str, declared: Dataset | None) -> Any:
    """The dataset that a source writes to, made if it is not there."""
    if name in lake:
        return lake[name]
    return lake.create(name, exist_ok=True) if declared is None else declared.make(lake)


def written(dataset: Any, data: Any, **options: Any) -> list[Commit] | None:
    """The commit of some data, if it changed anything; None when there are no rows at all."""
    before = dataset.snapshot().head
    try:
        commit = dataset.write(data, **options)
    except NothingToWrite:
        return None
    return [commit] if dataset.snapshot().head != before else []


def report(step: str, lake: Any, commits: Sequence[Commit], calls: int, is_keyed: bool, seconds: float) -> RunReport:
    new = sum(commit.new if is_keyed else commit.rows for commit in commits)
    return RunReport(
        step=step,
        run=lake.runtime.random_bytes(16).hex() if commits else "",
        keys=sum(commit.rows if not is_keyed else commit.new + commit.changed + commit.unchanged for commit in commits),
        called=calls,
        commits=len(commits),
        new=new,
        changed=sum(commit.changed for commit in commits),
        retracted=sum(commit.retracted for commit in commits),
        seconds=seconds,
    )
