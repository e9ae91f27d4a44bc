"""`floodmark status` says how far steps are behind, and what failed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import Lake


def table(answer):
    """The cells of the first table by step; `state` may have spaces."""
    heads = answer.lines[0]
    starts = [heads.index(name) for name in ("step", "last run", "state")]
    found = {}
    for line in answer.lines[1:]:
        if not line:
            break
        found[line.split()[0]] = (line.split()[1:6], line[starts[1] : starts[2]].strip(), line[starts[2] :])
    return found


def test_step_that_was_never_run_is_behind_by_all_records(run, orders):
    found = table(run("status"))
    assert found["prices"] == (["3", "0", "0", "0", "0"], "never", "behind")
    assert found["goods"] == (["-", "0", "0", "0", "0"], "-", "a source")


def test_step_whose_input_is_not_there_yet_waits_for_it(run, orders):
    answer = run("status")
    assert answer.code == 0
    assert "waits: there is no dataset 'prices'" in table(answer)["total"][2]


def test_step_that_has_run_counts_keys_and_failures(run, orders):
    run("run", "prices", "total")
    found = table(run("status"))
    assert found["prices"][0] == ["0", "3", "1", "0", "0"]
    assert found["prices"][2] == "2 of 3 succeeded, 1 failed"
    assert "just now" in found["total"][1] or "ago" in found["total"][1]


def test_new_records_are_what_it_is_behind(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [3, 4], "text": ["3.5", "4.5"]}))  # two records for the change, one for the new row
    counts, _, state = table(run("status"))["prices"]
    assert (counts[0], state) == ("3", "behind, 2 of 3 succeeded, 1 failed")


@pytest.mark.parametrize(
    ("handling", "counts"),
    [("'skip'", ["0", "1", "0"]), ("fm.OnError.retry(attempts=1)", ["0", "0", "1"]), ("'retry'", ["1", "0", "0"])],
)
def test_failed_skipped_and_exhausted_keys_are_kept_apart(run, orders, folder, handling, counts):
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('["prices"], lab', f'["prices"], on_error={handling}, lab'))
    answer = run("run", "prices")
    assert table(run("status"))["prices"][0][2:] == counts
    assert ("`floodmark retry prices` retries" in answer.err) is (handling != "'retry'")


def test_one_step_comes_with_its_inputs(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [4], "text": ["4.5"]}))
    assert run("status", "prices").lines[-2:] == [
        "input   position  head  behind",
        "orders         2     3       1",
    ]


def test_changed_function_makes_everything_stale_and_status_says_why(run, orders, folder):
    run("run", "prices")
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("round(100 *", "round(1000 *"))
    assert table(run("status"))["prices"][2] == "must process everything: its function changed"


def test_label_chooses_steps(run, orders):
    found = run("status", "--label", "stage=shop", "--json").json
    assert [one["step"] for one in found["steps"]] == ["prices", "total"]
    answer = run("status", "--label", "stage=none")
    assert (answer.code, answer.out) == (0, "")
    assert "no such steps" in answer.err


def test_label_without_a_value_is_not_understood(run, orders):
    assert run("status", "--label", "stage").code == 2


def test_json_has_what_the_table_has_and_more(run, orders):
    run("run", "prices")
    goods, prices, total = run("status", "--json").json["steps"]
    assert (prices["kind"], prices["labels"], prices["behind"]) == ("BatchTransform", {"stage": "shop"}, 0)
    assert prices["inputs"] == [{"name": "orders", "position": 2, "head": 2, "behind": 0}]
    assert (prices["keys"], prices["failed"], prices["last_run"]["keys"]) == (3, 1, 3)
    assert total["state"] == "behind"
    assert goods["inputs"] == []


def test_step_whose_state_cannot_be_read_is_named_and_the_others_are_shown(run, orders):
    Lake("lake").create("prices", key="cents").write(pa.table({"id": [1], "cents": [1]}))  # the step has another key
    answer = run("status")
    assert answer.code == 1
    assert "goods" in table(answer)
    assert "error: step prices:" in answer.err
    found = run("status", "--json")
    assert found.code == 1
    assert found.json["steps"][1]["error"]["type"] == "BadStep"
