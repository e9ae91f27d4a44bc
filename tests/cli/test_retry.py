"""`floodmark retry` tries failed keys again, whatever had been decided about them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import Lake


@pytest.mark.parametrize(
    "handling", ["'skip'", "'retry'", "fm.OnError.retry(attempts=1)", "fm.OnError.retry(backoff=3600)"]
)
def test_failed_keys_are_tried_again_however_they_are_handled(run, orders, folder, handling):
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('["prices"], lab', f'["prices"], on_error={handling}, lab'))
    run("run", "prices")
    (folder / "mended").touch()
    answer = run("retry", "prices")
    assert answer.out.startswith("prices: 1 key processed; rows: 1 new (")
    assert Lake("lake")["prices"].get([2]).to_pylist()[0]["cents"] == 0
    assert run("retry", "prices").out == "prices: nothing to do\n"


def test_retry_leaves_other_changes_to_run(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [4], "text": ["4.5"]}))
    assert run("retry", "prices", "--json").json["run"]["keys"] == 1
    assert run("plan", "prices", "--json").json["plans"][0]["plan"]["new"] == 1


def test_key_that_fails_again_is_one_attempt_more(run, orders):
    run("run", "prices")
    answer = run("retry", "prices")
    assert (answer.code, "1 key failed" in answer.err) == (0, True)
    assert run("errors", "prices", "--json").json["errors"][0]["attempts"] == 2
    assert run("retry", "prices", "--strict").code == 1


def test_retry_of_a_step_that_works_as_a_whole_is_refused(run, orders):
    answer = run("retry", "goods")
    assert answer.code == 1
    assert "run `floodmark run goods` to try again" in answer.err


def test_without_a_step_all_that_failed_is_tried_again(run, orders, folder):
    run("run", "prices")
    (folder / "mended").touch()
    (found,) = [one for one in run("retry", "--json").json["runs"] if one["keys"]]
    assert (found["step"], found["new"]) == ("prices", 1)
