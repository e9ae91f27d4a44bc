"""The command line: one small module per verb."""

from floodmark.cli.app import main

__all__ = ["main"]
