"""`verify` finds a head that names an older block than this machine has seen."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadId


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_STATE", str(tmp_path / "state"))


def _write(lake: fm.Lake, *values: int) -> None:
    lake["k"].write(pa.table({"v": list(values)}))


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("k")
    _write(lake, 1)
    return lake


def _head(lake: fm.Lake) -> Path:
    [head] = Path(lake.store.url).glob("datasets/*/refs/head")
    return head


def _roll_back(lake: fm.Lake) -> bytes:
    """Two commits, then the head as it was before them."""
    older = _head(lake).read_bytes()
    _write(lake, 2)
    _write(lake, 3)
    _head(lake).write_bytes(older)
    return older


def test_an_older_head_is_a_problem(lake: fm.Lake) -> None:
    _roll_back(lake)

    [problem] = lake["k"].verify().problems

    assert problem.kind == "head"
    assert "was at block 5" in problem.message
    assert "is at block 3 now" in problem.message


def test_it_stays_a_problem_after_new_commits(lake: fm.Lake) -> None:
    _roll_back(lake)
    for n in range(3):
        _write(lake, n)

    assert [problem.kind for problem in lake["k"].verify().problems] == ["head"]


def test_expecting_the_present_head_accepts_a_restored_copy(lake: fm.Lake) -> None:
    older = _roll_back(lake).decode()

    assert lake["k"].verify(expect=older).ok
    assert lake["k"].verify().ok


def test_a_block_that_is_not_on_the_chain_is_a_problem(lake: fm.Lake) -> None:
    _write(lake, 2)
    newest = _head(lake).read_text()
    assert lake["k"].verify(expect=newest).ok
    lake["k"].write(pa.table({"v": [5]}))
    assert lake["k"].verify(expect=newest).ok  # newer blocks are no problem

    with pytest.raises(BadId):
        lake["k"].verify(expect="nothing")
    assert not lake["k"].verify(expect=newest[:-4] + ("0000" if newest[-4:] != "0000" else "1111")).ok


def test_commits_of_others_are_no_problem(lake: fm.Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = str(tmp_path / "state")
    monkeypatch.setenv("FLOODMARK_STATE", str(tmp_path / "other machine"))
    _write(lake, 2)
    monkeypatch.setenv("FLOODMARK_STATE", here)
    _write(lake, 3)

    assert lake["k"].verify().ok
    _roll_back(lake)
    assert not lake["k"].verify().ok


def test_a_lost_state_folder_or_one_that_cannot_be_written_does_no_harm(
    lake: fm.Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FLOODMARK_STATE", str(tmp_path / "file"))

    _write(lake, 2)

    assert lake["k"].verify().ok
