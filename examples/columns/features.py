"""A function that is as slow as a model, and logs each call so that calls can be counted."""

from __future__ import annotations

import time
from pathlib import Path

import floodmark as fm

CALLS = "calls.log"


@fm.udf(returns="int64")
def sentiment(text: str) -> int:
    """Number of good words minus bad words, as slow as a real model."""
    time.sleep(0.02)
    with Path(CALLS).open("a") as calls:
        calls.write(f"{text}\n")
    words = text.split()
    return words.count("good") - words.count("bad")
