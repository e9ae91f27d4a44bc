"""A function that is slow, as models are, and that writes down each of its calls so that they can be counted."""

from __future__ import annotations

import time
from pathlib import Path

import floodmark as fm

CALLS = "calls.log"


@fm.udf(returns="int64")
def sentiment(text: str) -> int:
    """Good words less bad words; a real model would take about as long."""
    time.sleep(0.02)
    with Path(CALLS).open("a") as calls:
        calls.write(f"{text}\n")
    words = text.split()
    return words.count("good") - words.count("bad")
