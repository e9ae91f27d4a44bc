"""Says which Java Spark will run on; exit code 3 when there is none that will do."""

import sys

from floodmark.engine import JavaNotFound, find_java


def main() -> int:
    """Look where a Spark session of Floodmark's would look."""
    try:
        java = find_java()
    except JavaNotFound as error:
        print(error.message, file=sys.stderr)
        return 3
    print(f"Spark runs on Java {java.version} ({java.executable}, found by {java.source}).", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
