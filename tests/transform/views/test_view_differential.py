"""Whatever happens to sources and views, a refreshed view shows what its SQL gives from scratch."""

from __future__ import annotations

import pytest

from transform.views.view_histories import THEMES, history, weights

SEED = 1
STEPS = 12


@pytest.mark.spark
@pytest.mark.parametrize("theme", THEMES)
def test_view_shows_what_its_sql_gives_from_scratch_whatever_happens(theme, tmp_path, session):
    with history(theme, SEED, tmp_path, session) as lived:
        lived.live(STEPS, weights(lived))
