"""Print the Java that Spark will use. The exit code is 3 if no suitable Java was found."""

import sys

from floodmark.engine.java import find_java
from floodmark.errors import JavaNotFound


def main() -> int:
    """Search where Floodmark's Spark session searches."""
    try:
        java = find_java()
    except JavaNotFound as error:
        print(error.message, file=sys.stderr)
        return 3
    print(f"Spark runs on Java {java.version} ({java.executable}, found by {java.source}).", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
