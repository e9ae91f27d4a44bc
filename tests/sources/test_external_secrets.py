"""A password in a URL is never shown and never stored."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

import floodmark as fm
from floodmark.errors import BadSource, SourceFailed
from floodmark.sources.external_table import ExternalTable
from floodmark.sources.update_external_table import UpdateExternalTable
from sources.databases import Shop, at, notes

SECRET = "s3cr/et@x"
QUOTED = "s3cr%2Fet%40x"
UNINSTALLED = "postgresql+pg8000://bob:s3cret@db/shop#t"
UNKNOWN = "papyrus://bob:s3cret@db/shop#t"


def everything(error: BaseException) -> str:
    """All that could ever be printed of an error."""
    travelled = pickle.loads(pickle.dumps(error))
    shown = "".join(traceback.format_exception(error))
    return f"{error}{error!r}{vars(error)}{shown}{travelled}{vars(travelled)}"


@pytest.mark.parametrize(
    ("url", "source"),
    [
        (f"postgresql+psycopg://bob:{QUOTED}@db.shop:5432/shop", "postgresql://db.shop:5432/shop#t"),
        ("postgresql://db.shop/shop", "postgresql://db.shop/shop#t"),
        ("sqlite:///shop.db", "sqlite:///shop.db#t"),
        ("mysql://bob@db/shop?password=s3cret", "mysql://db/shop#t"),
        ("no url at all ://bob:s3cret@", "no url at all ://…#t"),
        ("postgresql://bob:s3@cret@db/shop", "postgresql://…#t"),
    ],
)
def test_the_name_of_a_source_has_no_user_and_no_password(url, source):
    table = ExternalTable(url, "t")
    assert table.source == source
    assert "s3" not in repr(table)
    assert "bob" not in repr(table)


def test_a_new_password_is_no_new_source_and_another_server_is():
    def odbc(server: str, password: str) -> str:
        connect = f"DRIVER=x;SERVER={server};UID=bob;PWD={password}"
        return ExternalTable(f"mssql+pyodbc:///?odbc_connect={connect}", "t").source

    assert odbc("one", "a") == odbc("one", "b")
    assert odbc("one", "a") != odbc("two", "a")
    assert "PWD" not in odbc("one", "a")


def test_a_sqlalchemy_url_keeps_its_password_for_connecting():
    url = sqlalchemy.make_url(f"postgresql://bob:{QUOTED}@db/shop")
    assert sqlalchemy.make_url(ExternalTable(url, "t").url).password == SECRET


def test_nothing_in_the_lake_holds_a_secret(tmp_path):
    shop = Shop(tmp_path / "shop.db")
    shop.put((1, "a", at(1)))
    lake = fm.Lake(tmp_path / "lake")
    step = UpdateExternalTable("orders", f"sqlite:///file:{shop.path}?uri=true&token=s3cret#orders")
    step.run(lake)
    assert notes(lake) == {1: "a"}
    shown = f"{step}{step.source}{step.plan(lake)}{step.status(lake)}{list(lake['orders'].log())}"
    assert "s3cret" not in shown
    files = [path for path in Path(tmp_path / "lake").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


@pytest.mark.parametrize("said", [SECRET, QUOTED, f"postgresql://bob:{QUOTED}@db/shop"])
def test_what_a_driver_complains_about_is_repeated_without_the_password(tmp_path, monkeypatch, said):
    def refuse(*args, **kwargs):
        raise OperationalError("SELECT 1", {"p": said}, Exception(f"cannot log in with {said} today"))

    monkeypatch.setattr(sqlalchemy, "create_engine", refuse)
    with pytest.raises(SourceFailed, match=r"postgresql://db/shop#t could not be read: .*today") as caught:
        UpdateExternalTable("t", f"postgresql://bob:{QUOTED}@db/shop#t").run(fm.Lake(tmp_path / "lake"))
    assert SECRET not in everything(caught.value)
    assert QUOTED not in everything(caught.value)


@pytest.mark.parametrize("url", ["postgresql://bob:s3cret@db:port/shop", "://bob:s3cret@db", "bob:s3cret@db"])
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(tmp_path, url):
    with pytest.raises(BadSource) as caught:
        UpdateExternalTable("t", f"{url}#t").run(fm.Lake(tmp_path / "lake"))
    assert "s3cret" not in everything(caught.value)


def test_a_driver_that_is_not_installed_is_named(tmp_path):
    with pytest.raises(BadSource, match="pip install pg8000") as caught:
        UpdateExternalTable("t", UNINSTALLED).run(fm.Lake(tmp_path / "lake"))
    assert "s3cret" not in everything(caught.value)


def test_a_database_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(BadSource, match="no SQLAlchemy dialect") as caught:
        UpdateExternalTable("t", UNKNOWN).run(fm.Lake(tmp_path / "lake"))
    assert "s3cret" not in everything(caught.value)


@pytest.mark.parametrize("given", ["sqlite:///shop.db", 7, None, "sqlite:///shop.db#"])
def test_a_source_that_names_no_table_is_refused(given):
    with pytest.raises(BadSource):
        UpdateExternalTable("t", given)


def test_a_table_in_a_schema_is_named_with_it():
    table = ExternalTable.parse("postgresql://db/shop#sales.orders")
    assert (table.schema, table.table, table.full_name) == ("sales", "orders", "sales.orders")
    assert table.source == "postgresql://db/shop#sales.orders"
