"""`python -m floodmark.cli` is the same as `floodmark`."""

from floodmark.cli import main

main()
