"""A new project on a terminal: bars while it works, a short answer that fits, and Ctrl-C that ends everything."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from cli.user import in_pipe, on_terminal, wait_for

pytestmark = pytest.mark.slow

SLOW = '''
    """Called with the sales that are new or changed, and with no others."""
    import time
    from pathlib import Path

    while (Path(HERE) / "closed").exists():
        (Path(HERE) / "waits").touch()
        time.sleep(0.02)
'''


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Path:
    """A new project that has not run; its step `convert` waits while there is a file named closed."""
    folder = tmp_path_factory.mktemp("user")
    assert in_pipe(folder, "new", "shop").code == 0
    pipeline = folder / "shop" / "pipeline.py"
    text = pipeline.read_text()
    docstring = '\n    """Called with the sales that are new or changed, and with no others."""\n'
    assert docstring in text
    pipeline.write_text(text.replace(docstring, SLOW).replace("\nRATES", '\nHERE = __file__.rpartition("/")[0]\nRATES'))
    return folder / "shop"


@pytest.fixture
def shop(new: Path, tmp_path: Path) -> Path:
    return shutil.copytree(new, tmp_path / "shop")


def test_run_shows_a_bar_per_step_and_leaves_a_line_for_each(shop):
    (shop / "closed").touch()
    with on_terminal(shop, "run", columns=100) as terminal:
        wait_for(shop / "waits", terminal.process)
        terminal.until(lambda received: "rows computed" in received or "6 rows in" in received)
        # And then to the end of a picture: it may have come in parts.
        terminal.until(lambda _: any(line.endswith("after convert") for line in terminal.screen()))
        live = terminal.screen()
        (shop / "closed").unlink()
        code = terminal.end()
        left = terminal.left_over()
    assert (code, left) == (0, [])
    bars = {line.split()[0]: line for line in live if "━" in line}
    assert list(bars) == ["ingest_sales", "convert", "sales.size", "total"]
    assert "7 rows in" in bars["ingest_sales"]
    assert "running convert" in bars["convert"]
    assert bars["total"].endswith("after convert")
    assert max(map(len, live)) <= 100
    shown = terminal.screen()
    assert [line.partition(":")[0] for line in shown] == ["ingest_sales", "convert", "sales.size", "total", "4 steps"]
    assert max(map(len, shown)) <= 100
    assert terminal.received.rindex("\x1b[?25h") > terminal.received.rindex("\x1b[?25l")  # the cursor is back

    for arguments in (
        ["status"],
        ["graph"],
        ["why", "in_euros", "id=2"],
        ["verify", "--replay"],
        ["doctor", "--no-spark"],
        ["run"],
    ):
        with on_terminal(shop, *arguments, columns=100) as terminal:
            assert terminal.end() == 0, terminal.screen()
        shown = terminal.screen()
        assert 3 <= len(shown) <= 40, shown
        assert max(map(len, shown)) <= 100, arguments

    whole = in_pipe(shop, "why", "in_euros", "id=2").out
    assert max(map(len, whole.splitlines())) > 50
    with on_terminal(shop, "why", "in_euros", "id=2", columns=50) as terminal:
        assert terminal.end() == 0
    assert max(map(len, terminal.screen())) <= 50
    assert re.split(r"[\s│├└─]+", "\n".join(terminal.screen())) == re.split(r"[\s│├└─]+", whole.strip())


def test_ctrl_c_ends_a_run_and_the_next_one_goes_on(shop):
    (shop / "closed").touch()
    with on_terminal(shop, "run") as terminal:
        wait_for(shop / "waits", terminal.process)

        second = in_pipe(shop, "run")
        assert (second.code, second.out) == (1, "")
        assert f" is being run by process {terminal.process.pid} on " in second.err
        assert second.err.count("error: ") == 1
        assert in_pipe(shop, "run", "--json").json["error"]["type"] == "Busy"

        terminal.type("\x03")
        code = terminal.end()
        left = terminal.left_over()
    assert (code, left) == (130, [])
    shown = "\n".join(terminal.screen())
    assert shown.splitlines()[-1].startswith("error: interrupted: ")
    assert "the same command goes on" in shown
    assert "Traceback" not in shown
    assert "━" not in shown
    assert terminal.received.rindex("\x1b[?25h") > terminal.received.rindex("\x1b[?25l")

    (shop / "closed").unlink()
    again = {one["step"]: one["state"] for one in in_pipe(shop, "run", "--json").json["runs"]}
    assert again["ingest_sales"] == "nothing"
    assert (again["convert"], again["total"]) == ("done", "done")
    verified = in_pipe(shop, "verify", "--replay")
    assert verified.code == 0, verified
