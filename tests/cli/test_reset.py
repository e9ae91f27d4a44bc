"""`floodmark reset` has everything processed once more, and says what that means."""

from __future__ import annotations

import pyarrow as pa

from floodmark import Lake


def test_reset_says_what_it_means_and_readers_keep_the_output(run, orders):
    run("run", "prices")
    before = Lake("lake")["prices"].to_arrow()
    answer = run("reset", "prices", "--yes")
    assert answer.out == (
        "prices: reset; the next run processes all keys again (3 so far), readers of prices see no change until then\n"
    )
    assert Lake("lake")["prices"].to_arrow().equals(before)


def test_run_after_a_reset_processes_everything_and_writes_only_what_differs(run, orders, folder):
    run("run", "prices")
    run("reset", "prices", "--yes")
    (folder / "mended").touch()
    (found,) = run("run", "prices", "--json").json["runs"]
    assert (found["keys"], found["new"], found["changed"], found["retracted"]) == (3, 1, 0, 0)


def test_reset_forgets_failures(run, orders):
    run("run", "prices")
    run("reset", "prices", "--yes")
    assert run("errors", "prices", "--json").json["failed"] == 0
    assert run("status", "prices", "--json").json["steps"][0]["stale"] == "it was reset"


def test_reset_without_yes_changes_nothing_and_a_dry_run_shows_what_it_means(run, orders):
    run("run", "prices")
    answer = run("reset", "prices")
    assert answer.code == 2
    assert "reset prices: the next run processes all keys again (3 so far)" in answer.err
    assert "--yes" in answer.err
    shown = run("reset", "prices", "--dry-run")
    assert shown.out.startswith("would reset prices: the next run processes all keys again (3 so far)\n")
    assert run("status", "prices", "--json").json["steps"][0]["stale"] is None


def test_step_that_was_never_run_has_nothing_to_reset(run, orders):
    assert run("reset", "prices", "--yes").out == "prices: nothing to reset, because it has not run yet\n"


def test_whole_dataset_step_is_computed_again(run, orders):
    run("run", "prices", "total")
    assert "the next run computes everything again" in run("reset", "total", "--yes").out
    assert run("run", "total", "--json").json["runs"][0]["called"] == 1


def test_source_has_nothing_to_reset(run, orders):
    answer = run("reset", "goods", "--yes")
    assert answer.code == 1
    assert "run `floodmark run goods`: it always computes everything" in answer.err


def test_json_counts_the_keys_that_are_forgotten(run, orders):
    orders.write(pa.table({"id": [4], "text": ["1"]}))
    run("run", "prices")
    found = run("reset", "prices", "--yes", "--json").json
    assert (found["step"], found["keys"], found["outputs"]) == ("prices", 4, ["prices"])
