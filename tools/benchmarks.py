"""List the benchmarks: the programs in bench/, each with the first line of its docstring."""

import ast
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench"


def programs() -> dict[str, str]:
    """The name of each benchmark and what it measures. Modules without a main part are not benchmarks."""
    found = {}
    for path in sorted(BENCH.glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        if '__name__ == "__main__"' in text:
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def main() -> None:
    """Print the list."""
    for name, what in programs().items():
        print(f"  make bench-{name:<18} {what}")
    print("\n  Options go through ARGS, as in: make bench-ledger_write ARGS=--help")


if __name__ == "__main__":
    main()
