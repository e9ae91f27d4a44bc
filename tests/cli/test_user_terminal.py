"""A new project on a terminal: bars while it works, a short answer that fits, and Ctrl-C that ends everything."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from cli.conftest import invoke, project
from cli.user import in_pipe, screen, wait_for
from cli.user import on_terminal as in_terminal
from transforms.worlds import in_this_process

SLOW = '''
    """Called with new and changed sales only."""
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
    with project(folder):
        assert invoke("new", "shop").code == 0
    pipeline = folder / "shop" / "pipeline.py"
    text = pipeline.read_text()
    docstring = '\n    """Called with new and changed sales only."""\n'
    assert docstring in text
    pipeline.write_text(text.replace(docstring, SLOW).replace("\nRATES", '\nHERE = __file__.rpartition("/")[0]\nRATES'))
    return folder / "shop"


@pytest.fixture
def shop(new: Path, tmp_path: Path) -> Path:
    return shutil.copytree(new, tmp_path / "shop")


@pytest.mark.process
def test_run_shows_a_bar_per_step_and_leaves_a_line_for_each(shop):
    (shop / "closed").touch()
    with in_terminal(shop, "run", columns=100) as terminal:
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


@pytest.mark.slow
def test_answers_fit_on_a_terminal(run, shop, on_terminal):
    with project(shop):
        assert run("run").code == 0
        for arguments in (
            ["status"],
            ["graph"],
            ["why", "in_euros", "id=2"],
            ["verify", "--replay"],
            ["doctor", "--no-spark"],
            ["run"],
        ):
            shown = screen(on_terminal(*arguments, columns=100))
            assert 3 <= len(shown) <= 40, shown
            # The folder of the test has a long name, which is not cut.
            assert max(len(line.replace(str(shop), "/lakes/shop")) for line in shown) <= 100, arguments

        whole = run("why", "in_euros", "id=2").out
        assert max(map(len, whole.splitlines())) > 50
        narrow = screen(on_terminal("why", "in_euros", "id=2", columns=50))
    assert max(map(len, narrow)) <= 50
    assert re.split(r"[\s│├└─]+", "\n".join(narrow)) == re.split(r"[\s│├└─]+", whole.strip())


@pytest.mark.process
def test_ctrl_c_ends_a_run_and_the_next_one_goes_on(run, shop):
    (shop / "closed").touch()
    with in_terminal(shop, "run") as terminal:
        wait_for(shop / "waits", terminal.process)

        second = in_pipe(shop, "run")
        assert (second.code, second.out) == (1, "")
        assert f": process {terminal.process.pid} on " in second.err
        assert second.err.count("error: ") == 1

        terminal.type("\x03")
        code = terminal.end()
        left = terminal.left_over()
    assert (code, left) == (130, [])
    shown = "\n".join(terminal.screen())
    assert shown.splitlines()[-1].startswith("error: interrupted: ")
    assert "ingest_sales" in shown
    assert "run the same command again" in shown
    assert "Traceback" not in shown
    assert "━" not in shown
    assert terminal.received.rindex("\x1b[?25h") > terminal.received.rindex("\x1b[?25l")

    (shop / "closed").unlink()
    with project(shop), in_this_process():
        again = {one["step"]: one["state"] for one in run("run", "--json").json["runs"]}
        verified = run("verify", "--replay")
    assert again["ingest_sales"] == "nothing"
    assert (again["convert"], again["total"]) == ("done", "done")
    assert verified.code == 0, verified
