"""The table of recent entries stays bounded, and keeps used entries as long as it can."""

from __future__ import annotations

from codeq_cluster.ratelimit.lru import LruTable


def test_an_entry_is_made_once_and_found_again() -> None:
    """The same entry is returned for as long as it is remembered."""
    table = LruTable[str, list[int]](idle=lambda entry: not entry, entries_max=10)
    table.of("a", list).append(1)

    assert [1] == table.of("a", list)


def test_idle_entries_go_when_others_come() -> None:
    """Idle entries are at most as many as used ones, however many keys pass through."""
    table = LruTable[int, list[int]](idle=lambda entry: not entry, entries_max=1_000)
    for key in range(20):
        table.of(key, list).append(1)
    for key in range(20, 10_000):
        table.of(key, list)

    assert len(table) <= 40
    assert all(table.of(key, list) == [1] for key in range(20))


def test_beyond_the_bound_the_least_recently_used_entry_goes() -> None:
    """An entry in use goes too: the bound comes first."""
    table = LruTable[int, list[int]](idle=lambda entry: not entry, entries_max=8)
    for key in range(100):
        table.of(key, list).append(1)

    assert 8 == len(table)
    assert [1] == table.of(99, list)
    assert [] == table.of(0, list)
