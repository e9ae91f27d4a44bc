"""One small Spark session for all tests that need Spark."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from floodmark.engine import ArchiveUse, Profile, Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """Hear Ctrl-C even when whoever started us has it ignored: what we start inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    settings = {
        "spark.master": "local[2,3]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    with Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE) as ours:
        yield ours


@pytest.fixture(scope="session")
def spark(session: Session) -> SparkSession:
    return session.get()


LOG_LINES = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What failed must not drown in what was logged meanwhile: of each captured part the last lines are enough."""
    report = yield
    report.sections = [(name, last_lines(text)) for name, text in report.sections]
    return report


def last_lines(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= LOG_LINES:
        return text
    return "\n".join([f"… {len(lines) - LOG_LINES} lines before these", *lines[-LOG_LINES:]])
