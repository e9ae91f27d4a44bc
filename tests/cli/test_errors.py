"""`floodmark errors` names the keys that failed, and says why, how often and since when."""

from __future__ import annotations

import pyarrow as pa

from floodmark import Lake


def test_failed_key_comes_with_its_error_attempts_and_time(run, orders):
    run("run", "prices")
    run("run", "prices")
    head, row = run("errors", "prices").lines
    assert head.split() == ["id", "error", "attempts", "since", "state", "rows"]
    assert row.startswith("2   ValueError: could not convert string to float: 'free'         2  20")
    assert row.endswith("  retry  none")


def test_since_is_the_first_failure(run, orders):
    run("run", "prices")
    (first,) = run("errors", "prices", "--json").json["errors"]
    run("run", "prices")
    (second,) = run("errors", "prices", "--json").json["errors"]
    assert (first["attempts"], second["attempts"]) == (1, 2)
    assert second["since"] == first["since"] == first["last"] < second["last"]


def test_step_without_failures_has_none(run, orders, folder):
    (folder / "mended").touch()
    for _ in range(2):  # before its first run, too
        answer = run("errors", "prices")
        assert (answer.code, answer.out) == (0, "")
        assert "no key of prices failed" in answer.err
        run("run", "prices")


def test_traceback_shows_the_line_of_the_function(run, orders, folder):
    run("run", "prices")
    answer = run("errors", "prices", "--traceback")
    assert answer.lines[0].startswith("id=2: 1 attempt failed since 20")
    assert f'    File "{folder / "pipeline.py"}", line 17, in prices' in answer.lines
    assert "            float(text)" not in answer.lines[0]
    assert answer.lines[-1] == "  ValueError: could not convert string to float: 'free'"


def test_limit_shows_a_few_and_counts_the_rest(run, orders):
    orders.write(pa.table({"id": [4, 5, 6], "text": ["x", "y", "z"]}))
    run("run", "prices")
    answer = run("errors", "prices", "--limit", "1")
    assert len(answer.lines) == 3
    assert answer.lines[-1] == "… and 3 more keys"
    found = run("errors", "prices", "--limit", "1", "--json").json
    assert (found["failed"], len(found["errors"])) == (4, 1)


def test_json_has_the_key_apart_and_the_traceback_when_asked(run, orders):
    run("run", "prices")
    (found,) = run("errors", "prices", "--json").json["errors"]
    assert found["key"] == {"id": 2}
    assert (found["type"], found["state"], found["due"]) == ("ValueError", "retry", None)
    assert "traceback" not in found
    (found,) = run("errors", "prices", "--json", "--traceback").json["errors"]
    assert "ValueError" in found["traceback"]


TYPED = """\
import pyarrow as pa

import floodmark as fm


def fails(things: pa.Table) -> pa.Table:
    raise LookupError


pipeline = fm.Pipeline([fm.BatchTransform(fails, ["things"], ["out"], on_error=fm.OnError.retry(backoff=3600))])
"""


def test_key_column_called_type_is_not_mistaken_for_the_error_and_null_is_a_key(run, orders, folder):
    (folder / "pipeline.py").write_text(TYPED.replace('["out"], ', '["out"], ["type"], '))
    Lake("lake").create("things").write(pa.table({"type": ["a", None], "n": [1, 2]}))
    run("run", "fails")
    found = run("errors", "fails", "--json").json["errors"]
    assert sorted((one["key"]["type"] or "", one["type"]) for one in found) == [
        ("", "LookupError"),
        ("a", "LookupError"),
    ]
    lines = run("errors", "fails").lines
    assert sorted(line.split()[:2] for line in lines[1:]) == [["a", "LookupError"], ["null", "LookupError"]]
    assert ", due 20" in lines[1]
    assert "type=null: 1 attempt failed" in run("errors", "fails", "--traceback").out


def test_errors_of_a_step_that_works_as_a_whole_are_refused(run, orders):
    answer = run("errors", "total")
    assert answer.code == 1
    assert "step 'total' is a DatatableTransform" in answer.err


def test_without_a_step_all_that_failed_is_shown(run, orders):
    run("run", "prices")
    head, *rest = run("errors").lines
    assert head == "prices: 1 key failed"
    assert rest[1].startswith("2   ValueError")
    found = run("errors", "--json").json["steps"]
    assert [(one["step"], one["failed"], len(one["errors"])) for one in found if one["failed"]] == [("prices", 1, 1)]


def test_without_a_step_and_without_failures_that_is_said(run, orders, folder):
    (folder / "mended").touch()
    answer = run("errors")
    assert (answer.code, answer.out, "no key of any step failed" in answer.err) == (0, "", True)
