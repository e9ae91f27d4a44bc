"""A root is believed only on the chain that it was made from and with the same settings."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from floodmark.timeline import root as roots
from timeline.laid_worlds import SETTINGS, Laid, rows


@pytest.fixture
def laid(tmp_path):
    return Laid(tmp_path)


def test_a_root_fits_its_chain_as_long_as_that_grows(laid):
    root = laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=2)
    assert roots.root_or_emptied(root, laid.snapshot, SETTINGS.digest) is root
    laid.dataset.write(rows([0]))
    assert roots.root_or_emptied(root, laid.snapshot, SETTINGS.digest) is root


def test_a_root_still_fits_when_its_records_are_purged(laid):
    root = laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=2)
    laid.purge(30)
    assert roots.root_or_emptied(root, laid.snapshot, SETTINGS.digest) is root


def test_a_root_of_other_settings_is_empty(laid, caplog):
    root = laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=2)
    with caplog.at_level(logging.WARNING):
        found = roots.root_or_emptied(root, laid.snapshot, "other")
    assert (found.applied, found.manifests, found.stored) == (0, (), root.stored)
    assert "other settings" in caplog.text


def test_a_root_of_another_chain_is_empty(laid, tmp_path_factory, caplog):
    root = laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=2)
    other = Laid(tmp_path_factory.mktemp("other"), of="other")
    with caplog.at_level(logging.WARNING):
        assert roots.root_or_emptied(root, other.snapshot, SETTINGS.digest).applied == 0
    assert "not on the chain" in caplog.text


def test_a_root_that_knows_more_than_a_snapshot_is_empty_for_it(laid):
    early = laid.snapshot
    laid.dataset.write(rows([0] * 10))
    root = laid.lay(laid.day(0, [laid.slice(0)], [laid.slice(1)]), slices=5)
    assert roots.root_or_emptied(root, early, SETTINGS.digest).applied == 0
    assert roots.root_or_emptied(root, laid.snapshot, SETTINGS.digest) is root


def test_a_root_that_ends_within_a_slice_is_empty(laid):
    root = replace(laid.lay(laid.day(0, [laid.slice(0)]), slices=1), applied=5)
    assert roots.root_or_emptied(root, laid.snapshot, SETTINGS.digest).applied == 0
