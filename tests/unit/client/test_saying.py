"""Saying: what is kept of what a handler says, until it is reported."""

from __future__ import annotations

import threading

from codeq_cluster.client.saying import LINE_BYTES_MAX, LINES_A_REPORT_MAX, LINES_KEPT_MAX, Said


def taken(said: Said) -> list[str]:
    """Take all that is left of a log."""
    found: list[str] = []
    while lines := said.take().get("log"):
        assert isinstance(lines, list)
        assert len(lines) <= LINES_A_REPORT_MAX
        found += lines
    return found


def test_a_text_is_as_many_lines_as_it_has_each_within_its_bound() -> None:
    """A character is not cut in two, and what is no character is replaced."""
    said = Said()
    said.log("one\ntwo\r\nthree")
    said.log("")
    said.log("ü" * 600)
    said.log("\ud800")

    assert ["one", "two", "three", "", "ü" * (LINE_BYTES_MAX // 2), "?"] == taken(said)
    assert not said.has_lines


def test_too_many_lines_leave_the_last_ones_and_say_how_many_are_gone() -> None:
    """A line by itself, before the first that is left; it is said once."""
    said = Said()
    for number in range(LINES_KEPT_MAX + 7):
        said.log(str(number))
    notice, *lines = taken(said)
    said.log("x\n" * (LINES_KEPT_MAX + 3))
    again, *many = taken(said)
    said.log("last")

    assert notice.startswith("(7 lines ")
    assert [str(number) for number in range(7, LINES_KEPT_MAX + 7)] == lines
    assert again.startswith("(3 lines ")
    assert ["x"] * LINES_KEPT_MAX == many
    assert ["last"] == taken(said)


def test_what_was_not_reported_comes_first_the_next_time() -> None:
    """Newer progress replaces it; lines do not, but for the oldest of too many."""
    said = Said()
    said.say("progress", 1)
    said.log("one")
    first = said.take()
    said.say("progress", 2)
    said.log("two")
    said.put_back(first)
    second = said.take()
    for number in range(LINES_KEPT_MAX):
        said.log(str(number))
    said.put_back({"log": ["old"]})
    notice, *lines = taken(said)

    assert {"progress": 2, "log": ["one", "two"]} == second
    assert notice.startswith("(1 lines ")
    assert [str(number) for number in range(LINES_KEPT_MAX)] == lines


def test_threads_lose_no_line() -> None:
    """Each line is reported once, in the order of its thread."""
    said = Said()
    threads = [
        threading.Thread(target=lambda of=of: [said.log(f"{of} {n}") for n in range(40)])  # type: ignore[misc]
        for of in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = taken(said)

    assert [f"{of} {n}" for of in range(4) for n in range(40)] == sorted(
        lines, key=lambda line: [int(each) for each in line.split()]
    )
    for of in range(4):
        own = [line for line in lines if line.startswith(f"{of} ")]
        assert [f"{of} {n}" for n in range(40)] == own
