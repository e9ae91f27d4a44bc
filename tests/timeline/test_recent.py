"""What was used last stays; what was not makes room; nothing heavier than allowed is kept."""

from __future__ import annotations

from floodmark.timeline.manifest import WeightedCache


def kept(recent, keys):
    return [key for key in keys if recent.get(key) is not None]


def test_what_was_not_used_for_the_longest_time_makes_room():
    recent = WeightedCache(10)
    for key in "abc":
        recent.put(key, key.upper(), 3)
    assert recent.get("a") == "A"
    recent.put("d", "D", 3)
    assert kept(recent, "abcd") == ["a", "c", "d"]


def test_what_is_too_heavy_by_itself_drives_nothing_out():
    recent = WeightedCache(10)
    recent.put("a", 1, 10)
    recent.put("b", 2, 11)
    assert kept(recent, "ab") == ["a"]


def test_what_is_put_twice_weighs_once():
    recent = WeightedCache(10)
    recent.put("a", 1, 5)
    recent.put("a", 2, 5)
    recent.put("b", 3, 5)
    assert (recent.get("a"), recent.get("b")) == (1, 3)


def test_what_is_dropped_leaves_its_room():
    recent = WeightedCache(10)
    recent.put("a", 1, 6)
    recent.drop("a")
    recent.drop("a")
    recent.put("b", 2, 5)
    recent.put("c", 3, 5)
    assert kept(recent, "abc") == ["b", "c"]
    recent.put("d", 4, 10)
    assert kept(recent, "bcd") == ["d"]
