"""The modules of bench/ as its programs see them."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent.parent / "bench"
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))
