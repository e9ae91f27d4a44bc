import io

import pytest

from floodmark.engine.progress import LineProgress, TerminalProgress, duration, progress_for, summary


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_come_at_most_every_few_seconds():
    out, clock = io.StringIO(), Clock()
    progress = LineProgress(out, clock=clock, every=5)
    progress.start("ingest trips", 6000)
    for _ in range(12):
        clock.now += 1
        progress.advance(400)
    assert out.getvalue().splitlines() == [
        "ingest trips: 2,000 of 6,000 rows (33 %), 400 rows/s, 10 s left",
        "ingest trips: 4,000 of 6,000 rows (66 %), 400 rows/s, 5 s left",
    ]


def test_last_line_says_how_it_ended():
    out, clock = io.StringIO(), Clock()
    progress = LineProgress(out, clock=clock, every=5)
    progress.start("ingest", 100)
    clock.now += 8
    progress.advance(100)
    progress.finish()
    progress.finish()
    assert out.getvalue().splitlines()[-1] == "ingest: 100 of 100 rows (100 %), 12 rows/s"


def test_what_was_said_is_not_said_again_at_the_end():
    out, clock = io.StringIO(), Clock()
    progress = LineProgress(out, clock=clock, every=5)
    progress.start("ingest", 100)
    clock.now += 8
    progress.fail(2)
    progress.advance(100)
    progress.finish()
    assert out.getvalue().splitlines() == ["ingest: 100 of 100 rows (100 %), 12 rows/s, 2 failed"]


def test_short_work_writes_no_lines():
    out, clock = io.StringIO(), Clock()
    progress = LineProgress(out, clock=clock, every=5)
    progress.start("ingest", 100)
    clock.now += 1
    progress.advance(100)
    progress.finish()
    assert out.getvalue() == ""


def test_terminal_shows_label_rows_rate_and_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    out, clock = Terminal(), Clock()
    progress = TerminalProgress(out, clock=clock)
    progress.start("ingest trips", 6000)
    clock.now += 2
    progress.advance(3000)
    progress.finish()
    progress.advance(1)  # late news after the end does no harm
    assert "ingest trips" in out.getvalue()
    assert "3,000 of 6,000 rows (50 %), 1,500 rows/s, 2 s left" in out.getvalue()


def test_terminal_gets_a_bar_and_a_pipe_gets_lines():
    assert isinstance(progress_for(Terminal()), TerminalProgress)
    assert isinstance(progress_for(io.StringIO()), LineProgress)


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 10, 0, "0 of 10 rows (0 %)"),
        (0, 0, 1, "0 of 0 rows"),
        (5, None, 10, "5 rows, 0.5 rows/s"),
        (0, None, 0, ""),
        (0, None, 12, "12 s"),
        (10, 10, 0, "10 of 10 rows (100 %)"),
    ],
)
def test_summary_says_only_what_is_known(done, total, seconds, text):
    assert summary(done, total, seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (3600, "1 h")],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text
