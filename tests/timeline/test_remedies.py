"""What is to be done about a file that cannot be read depends on whose it is."""

from __future__ import annotations

from floodmark.timeline.manifest import FOLDER, repair_hint


def test_own_files_are_made_anew_and_slices_are_looked_into() -> None:
    own, slice_ = repair_hint(f"{FOLDER}/f1620ab-12-0000abcd"), repair_hint("data/f1620ab")
    assert "fold()" in own
    assert "verify()" not in own
    assert "verify()" in slice_
    assert "fold()" not in slice_
