"""A file system whose process ends at the nth change it makes."""

from histories.disks import Crash, DyingFileSystem

__all__ = ["Crash", "DyingFileSystem"]
