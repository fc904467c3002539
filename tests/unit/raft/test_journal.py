"""The journal: after a restart it holds what was flushed, or the node does not start."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.errors import DataDirectoryRefused, SafetyViolated, StorageDamaged
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.journal_rows import rows_after_snapshot, stored_term
from codeq_cluster.raft.messages import NO_OP
from codeq_cluster.wire.messages import pack
from tests.simulator.disk import SimDisk

Change = Callable[[bytes], bytes | None]


def opened(disk: SimDisk, *, applied: int = 1, cache_bytes_max: int = 10_000) -> Journal:
    journal = Journal(disk, cache_bytes_max=cache_bytes_max)
    journal.load(applied=applied)
    return journal


def flush(journal: Journal, disk: SimDisk) -> None:
    if journal.trimmed_to is not None:
        forgotten = journal.forget()
        disk.write(forgotten.puts, delete_ranges=forgotten.delete_ranges, sync=False)
    write = journal.flush()
    disk.write(write.puts, delete_ranges=write.delete_ranges, sync=True)
    journal.flushed()


def filled(disk: SimDisk, entries: int, *, term: int = 1) -> Journal:
    """Return a flushed journal with entries 2 to `entries`, each of 10 bytes."""
    journal = opened(disk)
    journal.setCurrentTerm(term, "A")
    for index in range(2, entries + 1):
        journal.add(b"\x00" + b"%09d" % index, index, term)
    flush(journal, disk)
    return journal


def row(index: int) -> bytes:
    return b"log/" + index.to_bytes(8, "big")


def test_a_fresh_log_starts_with_the_librarys_first_entry() -> None:
    """Every node's log begins with the same entry, so the first real entry has a predecessor."""
    journal = opened(SimDisk())

    assert (1, 1, (NO_OP, 1, 0)) == (journal.first, journal.last, journal[0])


def test_flushed_entries_are_there_after_a_restart() -> None:
    """Entries, term and vote come back unchanged."""
    disk = SimDisk()
    filled(disk, 20, term=3)
    disk.crash(Random(0))

    journal = opened(disk)

    assert (20, 3, 3, "A") == (journal.last, journal.last_term, journal.term, journal.voted_for)
    assert [(b"\x00000000007", 7, 3)] == journal.read(7, count=1, bytes_max=100)


def test_what_was_not_flushed_is_not_promised() -> None:
    """Only entries up to `flushed_last` are promised."""
    disk = SimDisk()
    journal = filled(disk, 5)

    journal.add(b"\x00x", 6, 1)

    assert journal.promising
    assert (5, 6) == (journal.flushed_last, journal.last)


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (3, lambda value: value[:-1] + b"!", "checksum"),
        (3, lambda value: value[:9], "cut short"),
        (3, lambda value: b"\x09" + value[1:], "format"),
        (3, lambda value: value[:5] + b"\xff" + value[6:], "checksum"),
        (3, lambda _: None, "lacks the entries 3 to 3"),
        (5, lambda value: value[:4], "cut short"),
    ],
    ids=["payload", "torn", "version", "term", "gap", "torn tail"],
)
def test_a_damaged_row_refuses_to_start(index: int, change: Change, message: str) -> None:
    """A wrong log is worse than a node that is down."""
    disk = SimDisk()
    filled(disk, 5)
    disk.damage(row(index), change)

    with pytest.raises(DataDirectoryRefused, match=message):
        opened(disk)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value[:-1] + b"!", "damaged"),
        (lambda value: value[:7], "cut short"),
        (lambda _: None, "the vote is missing"),
    ],
    ids=["flipped", "torn", "missing"],
)
def test_a_damaged_vote_refuses_to_start(change: Change, message: str) -> None:
    """A node that has forgotten its vote could vote twice."""
    disk = SimDisk()
    filled(disk, 5)
    disk.damage(b"vote", change)

    with pytest.raises(DataDirectoryRefused, match=message):
        opened(disk)


def test_a_state_ahead_of_the_log_refuses_to_start() -> None:
    """The end of the log was lost, so the node cannot explain its state to the peers."""
    disk = SimDisk()
    filled(disk, 5)

    with pytest.raises(DataDirectoryRefused, match="applied entry 6, the log ends at 5"):
        opened(disk, applied=6)


def test_a_state_behind_the_log_refuses_to_start() -> None:
    """The entries between state and log are gone."""
    disk = SimDisk()
    journal = filled(disk, 1000)
    journal.trim(900)
    flush(journal, disk)

    with pytest.raises(DataDirectoryRefused, match="applied entry 800, the log starts at 900"):
        opened(disk, applied=800)


def test_a_state_without_a_log_refuses_to_start() -> None:
    """A missing log must not pass for a new one."""
    with pytest.raises(DataDirectoryRefused, match="the log is empty"):
        opened(SimDisk(), applied=7)


def test_truncation_replaces_the_tail_on_disk() -> None:
    """A newer leader's entries replace the old ones, in one write."""
    disk = SimDisk()
    journal = filled(disk, 9)
    journal.deleteEntriesFrom(5)  # Entries 6 to 9.
    journal.setCurrentTerm(2, None)
    journal.add(b"\x00new", 6, 2)
    flush(journal, disk)
    disk.crash(Random(0))

    again = opened(disk)

    assert (6, 2) == (again.last, again.last_term)
    assert b"\x00new" == again[-1][0]


def test_truncation_of_committed_entries_is_refused() -> None:
    """No leader may remove a committed entry."""
    journal = filled(SimDisk(), 9)
    journal.setRaftCommitIndex(6)

    with pytest.raises(SafetyViolated, match="truncation at 6"):
        journal.deleteEntriesFrom(5)

    assert 9 == journal.last


def test_an_entry_that_does_not_follow_is_refused() -> None:
    """A gap is refused, and so is a term that shrinks."""
    journal = filled(SimDisk(), 9, term=2)

    with pytest.raises(SafetyViolated):
        journal.add(b"\x00x", 11, 2)
    with pytest.raises(SafetyViolated):
        journal.add(b"\x00x", 10, 1)


def test_a_term_never_shrinks_and_a_vote_never_changes() -> None:
    """A node votes once per term, whatever the library asks for."""
    journal = filled(SimDisk(), 2, term=5)

    with pytest.raises(SafetyViolated, match="term 4 after term 5"):
        journal.setCurrentTerm(4, None)
    with pytest.raises(SafetyViolated, match="second vote"):
        journal.setCurrentTerm(5, "B")


@pytest.mark.parametrize("cache_bytes_max", [100, 10_000])
def test_no_more_entries_are_read_than_fit_a_message(cache_bytes_max: int) -> None:
    """From the store, where all but the newest are, as from memory: a longer one is not sent."""
    disk = SimDisk()
    filled(disk, 500)
    journal = opened(disk, cache_bytes_max=cache_bytes_max)
    all_ = journal.read(10, count=20, bytes_max=10_000)
    for bytes_max in range(1, 500):
        entries = journal.read(10, count=20, bytes_max=bytes_max)
        assert all_[: len(entries)] == entries
        assert len(pack(entries)) <= bytes_max or len(entries) == 1

    assert list(range(10, 30)) == [entry[1] for entry in all_]
    assert journal._cache._bytes <= cache_bytes_max


def test_damage_after_the_start_is_noticed_when_read() -> None:
    """A row that went bad on disk stops the node instead of reaching a follower."""
    disk = SimDisk()
    filled(disk, 100)
    journal = opened(disk, cache_bytes_max=50)
    disk.damage(row(10), lambda value: value[:-1] + b"!")

    with pytest.raises(StorageDamaged, match="damaged near entry 10"):
        journal.read(10, count=1, bytes_max=100)


def test_trimming_keeps_the_entry_at_the_floor() -> None:
    """The next entry needs the term of the entry at the floor."""
    disk = SimDisk()
    journal = filled(disk, 1000)

    journal.trim(700)
    flush(journal, disk)

    assert (700, 1) == (journal.first, journal.term_at(700))
    assert journal.term_at(699) is None
    assert disk.get(row(699)) is None
    assert (301, 3010) == (len(journal), journal.log_bytes)


def test_trimming_waits_until_it_is_worth_it() -> None:
    """A range delete for a handful of entries costs more than it frees."""
    journal = filled(SimDisk(), 1000)

    journal.trim(20)

    assert 1 == journal.first
    assert journal.trimmed_to is None


@given(st.data())
def test_the_log_equals_a_plain_list_whatever_happens_to_it(data: st.DataObject) -> None:
    """Adds, truncations, trims, flushes and restarts leave the same entries as in a plain list."""
    disk = SimDisk()
    journal = opened(disk, cache_bytes_max=60)
    flush(journal, disk)
    model = {1: (NO_OP, 1, 0)}
    durable = dict(model)
    term = 0
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["add", "add", "term", "cut", "trim", "flush", "crash"])):
            case "add":
                index = max(model) + 1
                command = b"\x00" + data.draw(st.binary(max_size=20))
                journal.add(command, index, term)
                model[index] = (command, index, term)
            case "term":
                term += 1
                journal.setCurrentTerm(term, None)
            case "cut" if max(model) > min(model):
                start = data.draw(st.integers(min(model) + 1, max(model)))
                journal.deleteEntriesFrom(start - min(model))
                model = {index: entry for index, entry in model.items() if index < start}
            case "trim":
                journal.trim(data.draw(st.integers(1, max(model))))
                model = {index: entry for index, entry in model.items() if index >= journal.first}
            case "flush":
                flush(journal, disk)
                durable = dict(model)
            case "crash":
                disk.crash(Random(0))
                model = dict(durable)
                journal = opened(disk, applied=min(model), cache_bytes_max=60)
                journal.commit = 0
                term = max(journal.term, journal.last_term)
        assert (journal.first, journal.last) == (min(model), max(model))
        assert model[max(model)] == journal[-1]
        assert model[min(model)] == journal[0]
        assert journal.log_bytes == sum(len(entry[0]) for entry in model.values())
        index = data.draw(st.integers(min(model), max(model)))
        assert [model[index]] == journal.read(index, count=1, bytes_max=0)
        assert model[index][2] == journal.term_at(index)


# Bounds.


class CountedSizes(array):  # type: ignore[type-arg]
    """The sizes of a log's entries; counts how many are read."""

    looked_at = 0

    def __getitem__(self, place: int | slice) -> int | array[int]:  # type: ignore[override]
        found = super().__getitem__(place)
        type(self).looked_at += 1 if isinstance(found, int) else len(found)
        return found


@pytest.mark.parametrize("applied_behind", [0, 1500], ids=["applied", "applying"])
def test_forgetting_costs_what_is_forgotten(applied_behind: int) -> None:
    """Trimming does not walk through a long log that is within its bounds or cannot be trimmed."""
    disk = SimDisk()
    journal = opened(disk, cache_bytes_max=100)
    sizes = type("Sizes", (CountedSizes,), {"looked_at": 0})("Q", journal._sizes)
    journal._sizes = sizes
    bound = 2000
    for index in range(2, 20_001):
        journal.add(b"\x00" + b"%09d" % index, index, 1)
        flush(journal, disk)
        if len(journal) > bound:
            upto = max(1, index - applied_behind)
            journal.trim(journal.first_within(2**30, bound // 2, upto=upto))

    assert journal.first > 17_000
    # One read per entry finds the end of the trim and one adds up its size; both repeat while a
    # trim is not worth it.
    assert type(sizes).looked_at <= 2 * journal.first + 256 * (20_000 // 256) * 2


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    bytes_max=st.integers(0, 500),
    entries_max=st.integers(1, 50),
    upto=st.integers(1, 50),
)
def test_the_entries_that_stay_are_within_the_bounds(
    sizes: list[int], bytes_max: int, entries_max: int, upto: int
) -> None:
    """No more entries go than needed, none beyond the limit, and never the last one."""
    journal = opened(SimDisk())
    for index, size in enumerate(sizes, start=2):
        journal.add(b"\x00" * size, index, 1)
    lengths = {1: 1, **dict(enumerate(sizes, start=2))}

    first = journal.first_within(bytes_max, entries_max, upto=upto)

    def fits(start: int) -> bool:
        kept = [size for index, size in lengths.items() if index >= start]
        return sum(kept) <= bytes_max and len(kept) <= entries_max

    end = min(upto, journal.last)
    assert first == next((index for index in range(1, end) if fits(index)), end)


# The log after a snapshot.


@given(
    index=st.integers(2, 2**40),
    term=st.integers(0, 2**20),
    ahead=st.integers(0, 3),
    voted_for=st.sampled_from([None, "A", "B"]),
)
def test_a_log_that_begins_at_a_snapshot_is_loaded(
    index: int, term: int, ahead: int, voted_for: str | None
) -> None:
    """Nothing of the old log remains; term and vote are as given, and entries can follow."""
    disk = SimDisk()
    filled(disk, 20, term=3)
    puts, deletes = rows_after_snapshot(index, term, vote_term=term + ahead, voted_for=voted_for)
    disk.write(puts, delete_ranges=deletes, sync=True)

    journal = opened(disk, applied=index)

    assert (index, index, term) == (journal.first, journal.last, journal.last_term)
    assert (term + ahead, voted_for) == (journal.term, journal.voted_for)
    assert (index, index) == (journal.commit, journal.flushed_last)
    assert term == stored_term(disk.get, index)
    assert stored_term(disk.get, 20 if index != 20 else 19) is None
    journal.add(b"\x00next", index + 1, term + ahead)
    flush(journal, disk)
    assert index + 1 == opened(disk, applied=index).last


def test_a_damaged_entry_has_no_term() -> None:
    """A snapshot with a damaged last entry is refused."""
    disk = SimDisk()
    filled(disk, 5)
    disk.damage(row(5), lambda value: value[:-1] + b"!")

    with pytest.raises(ValueError, match="checksum"):
        stored_term(disk.get, 5)
