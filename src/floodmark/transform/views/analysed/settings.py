"""The settings that decide what a view's query means: kept with its definition, and used wherever it is refreshed.

Whether a cast that fails is null, and to which day a moment belongs, is a matter of settings. A view has those of the
session that declared it, or that changed its definition last; the settings of a session that merely refreshes it, or
declares the same once more, do not count. Settings that only say how work is done are always the present session's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from floodmark.transform.views.errors import OtherSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALWAYS = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.timestampType",
    "spark.sql.caseSensitive",
)
"""Kept even where nobody set them: the machine or the release of Spark decides what they are then."""

_MEANING = re.compile(
    r"spark\.sql\.(session\.timeZone|timestampType|caseSensitive|mapKeyDedupPolicy|crossJoin\.enabled|orderByOrdinal"
    r"|groupByAliases|groupByOrdinal|charAsVarchar|readSideCharPadding|preserveCharVarcharTypeInfo|retainGroupColumns"
    r"|storeAssignmentPolicy|chunkBase64String\.\w+|fromJsonForceNullableSchema|columnNameOfCorruptRecord"
    r"|pivotMaxValues|timeType\.\w+|timestampNanosTypes\.\w+"
    r"|(ansi|legacy|decimalOperations|function|functionResolution|json|jsonGenerator|parser|collation|icu"
    r"|lateralColumnAlias|listagg|variant|analyzer)\..*)"
)

_NO_VARIABLES = ("spark.sql.variable.substitute", "false")
"""`${…}` in a query would be replaced by whatever the settings and the environment of a process say."""

_BETWEEN = "\x1e"


def isolated(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with no views or functions but its own, in which queries mean what these settings say.

    Without them they mean what they mean in the given session, whose other settings it has in any case. Spark Connect
    has no such thing: there it is the given one, which must have the settings already.
    """
    if not hasattr(spark, "_jsparkSession"):
        _check(spark, settings or {})
        return spark
    made = spark.newSession()
    ours, theirs = _set_in(made), _set_in(spark)
    if settings is not None:
        for name in filter(_MEANING.fullmatch, ours):
            if name not in settings and made.conf.isModifiable(name):
                made.conf.unset(name)
        theirs = {**{name: value for name, value in theirs.items() if not _MEANING.fullmatch(name)}, **settings}
    for name, value in theirs.items():
        if name.startswith("spark.sql.") and ours.get(name) != value and made.conf.isModifiable(name):
            made.conf.set(name, value)
    made.conf.set(*_NO_VARIABLES)
    return made


def meaning_in(spark: SparkSession) -> dict[str, str]:
    """The settings of a session that decide what queries mean in it."""
    found = {name: str(spark.conf.get(name)) for name in _ALWAYS}
    return dict(sorted({**{n: v for n, v in _set_in(spark).items() if _MEANING.fullmatch(n)}, **found}.items()))


def _set_in(spark: SparkSession) -> dict[str, str]:
    """What was set in a session, in one call: `conf.getAll` makes one for each."""
    text = spark._jsparkSession.sessionState().conf().getAllConfs().mkString(_BETWEEN)
    pairs = [said.partition(" -> ") for said in str(text).split(_BETWEEN)]
    return {name: value for name, arrow, value in pairs if arrow}


def _check(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Refuse a session whose settings cannot be ours and are others."""
    for name, value in settings.items():
        if (present := spark.conf.get(name, None)) != value:
            raise OtherSettings(
                f"the view was declared with {name}={value}, and in this Spark Connect session it is {present}",
                hint=f"set it: spark.conf.set({name!r}, {value!r}), or refresh with a session that is not remote",
                setting=name,
                value=value,
            )
