"""`python -m floodmark.cli` is the same as `floodmark`."""

from floodmark.cli.app import main

main()
