"""Memberships: those of a log, compared with a plain list of every membership it named."""

from __future__ import annotations

from random import Random

import pytest

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import DataDirectoryRefused
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.journal_rows import rows_after_snapshot, stored_place
from codeq_cluster.raft.messages import MEMBERS, NO_OP, PAYLOAD
from tests.simulator.disk import SimDisk

BOOTSTRAP = Membership(members=(Member(id="A", data=1),))


def named(number: int) -> Membership:
    return Membership(members=(Member(id="A", data=1), Member(id=f"N{number}", data=number)))


def journal(disk: SimDisk, *, applied: int = 1) -> Journal:
    made = Journal(disk, cache_bytes_max=2**16)
    made.load(applied=applied, bootstrap=BOOTSTRAP)
    return made


def flushed(made: Journal, disk: SimDisk) -> None:
    if made.trimmed_to is not None:
        forgotten = made.forget()
        disk.write(forgotten.puts, delete_ranges=forgotten.delete_ranges, sync=True)
    if made.promising:
        flush = made.flush()
        disk.write(flush.puts, delete_ranges=flush.delete_ranges, sync=True)
        made.flushed()


@pytest.mark.parametrize("seed", range(30))
def test_what_counts_is_what_the_log_said_last(seed: int) -> None:
    """Appends, truncations, trims, crashes and restarts keep the newest one in force."""
    random, disk = Random(seed), SimDisk()
    made = journal(disk)
    flushed(made, disk)
    said: dict[int, Membership] = {1: BOOTSTRAP}  # The memberships in the current log, by index.
    for number in range(200):
        match random.choice(("payload", "members", "truncate", "trim", "restart")):
            case "payload":
                made.add(PAYLOAD + bytes(random.choice((1, 40_000))), made.last + 1, made.term)
            case "members":
                made.name_members(named(number))
                said[made.last] = named(number)
            case "truncate" if made.last > made.first:
                start = random.randint(made.first + 1, made.last)
                made.deleteEntriesFrom(start - made.first)
                said = {index: each for index, each in said.items() if index < start}
            case "trim":
                flushed(made, disk)
                made.trim(random.randint(made.first, made.last))
            case "restart":
                flushed(made, disk)
                disk.crash(random)
                made = journal(disk, applied=made.first)

        assert said[max(said)] == made.memberships.newest[1]
        for index in (made.first, made.last):
            assert said[max(i for i in said if i <= index)] == made.memberships.at(index)[1]


def test_a_snapshot_carries_who_formed_the_group_at_its_end() -> None:
    """A snapshot names the members at its end, not earlier or later ones."""
    disk = SimDisk()
    made = journal(disk)
    for number in range(6):
        made.name_members(named(number))
        made.add(NO_OP, made.last + 1, made.term)
    flushed(made, disk)

    term, members = stored_place(disk.get, lambda start, end: rows(disk, start, end), 7)

    assert (0, made.members_row(7)) == (term, members)
    puts, _ = rows_after_snapshot(7, 0, vote_term=0, voted_for=None, members=members)
    fresh = SimDisk()
    fresh.write(puts, sync=True)
    assert (6, named(2)) == journal(fresh, applied=7).memberships.newest


def test_a_log_without_a_membership_takes_that_of_the_bootstrap() -> None:
    """A restored log, or that of a joining node, takes the members of the bootstrap."""
    disk = SimDisk()
    waiting = Journal(disk, cache_bytes_max=2**16)
    waiting.load(applied=1)
    assert Membership() == waiting.memberships.newest[1]

    waiting.bootstrap(BOOTSTRAP)
    flushed(waiting, disk)

    again = Journal(disk, cache_bytes_max=2**16)
    again.load(applied=1)
    assert BOOTSTRAP == again.memberships.newest[1]


@pytest.mark.parametrize("change", [lambda row: row[:5], lambda row: row[:-1] + b"\xff"])
def test_a_damaged_membership_refuses_to_start(change: object) -> None:
    """A node never guesses who counts for a majority."""
    disk = SimDisk()
    made = journal(disk)
    made.setCurrentTerm(1, "A")
    flushed(made, disk)
    disk.damage(b"members", change)  # type: ignore[arg-type]

    with pytest.raises(DataDirectoryRefused, match="membership"):
        journal(disk)


def test_an_entry_without_members_is_refused() -> None:
    """An entry without members never gets into the log."""
    made = journal(SimDisk())

    with pytest.raises(ValueError, match="version"):
        made.add(MEMBERS + codec.encode(BOOTSTRAP)[1:], 2, 0)


def rows(disk: SimDisk, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    return disk.scan(start, end, limit=10**6, bytes_max=10**9)
