"""The same worlds as the tests of the ledger."""

from ledger.conftest import clock, lake, memory_lake

__all__ = ["clock", "lake", "memory_lake"]
