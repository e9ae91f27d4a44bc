"""Whatever happens to sources and views, a refreshed view shows what its SQL gives from scratch."""

from __future__ import annotations

import pytest

from histories.views import THEMES, history, weights
from profiles import seeds

STEPS = 6


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("theme", THEMES)
def test_view_shows_what_its_sql_gives_from_scratch_whatever_happens(theme, seed, tmp_path, session):
    with history(theme, seed, tmp_path, session) as lived:
        lived.live(STEPS, weights(lived))
