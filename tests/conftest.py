"""One small Spark session for all tests that need Spark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
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
