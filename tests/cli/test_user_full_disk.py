"""A disk that is full stops a run with one error; with room again, the same command goes on."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from cli.conftest import project
from cli.user import in_pipe
from transforms.worlds import in_this_process


def no_room() -> None:
    """No file may become larger than this: what a full disk is to a program, without filling one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.process
def test_full_disk_is_one_error_and_nothing_is_lost(run, folder: Path):
    assert run("new", "shop").code == 0
    shop = folder / "shop"
    full = in_pipe(shop, "run", before=no_room)
    assert full.code == 1
    assert "Traceback" not in full.err
    assert full.err.count("error: ") == 1, full.err
    assert "File too large" in full.err
    assert "skipped, because ingest_sales failed" in full.out
    with project(shop), in_this_process():
        again = run("run", "--json").json["runs"]
        assert [one["state"] for one in again] == ["done"] * 4
        assert run("verify").code == 0
