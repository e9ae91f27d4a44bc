"""The same views as a pipeline: one for each .sql file of this folder."""

from __future__ import annotations

import floodmark as fm

pipeline = fm.Pipeline(
    [
        fm.DatasetSpec("flights", key="id"),
        fm.DatasetSpec("weather", key=["origin", "day"]),
        *fm.sql_views("*.sql"),
    ]
)
