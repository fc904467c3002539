"""Windows: they equal a scan of the whole range, and read each dead row at most once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.broker.engine import window as window_module
from codeq_cluster.broker.engine.window import KeyBudget, Window

START, END = b"k/", b"k0"


class _Rows:
    """Live keys in a plain set, and a count of the keys read."""

    def __init__(self) -> None:
        self.live: set[bytes] = set()
        self.read_keys = 0

    def read(self, start: bytes, end: bytes, limit: int) -> tuple[list[bytes], bytes]:
        found = sorted(key for key in self.live if start <= key < end)[:limit]
        self.read_keys += len(found)
        return found, (found[-1] + b"\0" if len(found) == limit else end)


def _key(number: int) -> bytes:
    return START + number.to_bytes(2, "big")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "first", "head", "list"]), st.integers(0, 3000)
        ),
        max_size=60,
    ),
    st.integers(0, 2500),
)
def test_a_window_agrees_with_a_scan_of_the_whole_range(
    steps: list[tuple[str, int]], already: int
) -> None:
    """After any adds and removes, before or beyond the edge, first and order equal the scan's.

    An added key is the first one only if the window says that it may be.
    """
    rows = _Rows()
    rows.live = {_key(number) for number in range(0, already, 2)}
    window = Window(START, END, rows.read)
    for step, number in steps:
        key = _key(number)
        if step == "add":
            if key not in rows.live:
                rows.live.add(key)

                assert window.add(key) or min(rows.live) < key
        elif step == "remove":
            rows.live.discard(key)
            window.remove(key)
        elif step == "first":
            assert window.first() == min(rows.live, default=None)
        elif step == "head":
            assert window.head(number) == sorted(rows.live)[:number]
        else:
            expected = sorted(rows.live)[:50]

            assert expected == [key for key, _ in zip(window, range(50), strict=False)]


def test_a_served_queue_reads_each_row_once() -> None:
    """Claiming all of a queue costs one read of it, however long it is."""
    rows = _Rows()
    rows.live = {_key(number) for number in range(5000)}
    window = Window(START, END, rows.read)
    served = 0
    while (key := window.first()) is not None:
        rows.live.discard(key)
        window.remove(key)
        served += 1

    assert (5000, 5000) == (served, rows.read_keys)


def test_a_window_forgets_its_far_half_when_it_grows_too_large() -> None:
    """Memory stays bounded while keys arrive below the edge, and none is lost."""
    rows = _Rows()
    window = Window(START, END, rows.read)
    assert window.first() is None
    numbers = range(window_module.KEYS_MAX * 3)
    for number in numbers:
        rows.live.add(_key(number))
        window.add(_key(number))
    seen = []
    while (key := window.first()) is not None:
        seen.append(key)
        rows.live.discard(key)
        window.remove(key)

    assert seen == [_key(number) for number in numbers]


def test_windows_that_share_a_budget_keep_few_keys_each_when_it_is_used_up() -> None:
    """Together they hold the budget plus a few keys each, and no key is lost."""
    rows = [_Rows() for _ in range(20)]
    budget = KeyBudget(100)
    windows = [Window(START, END, each.read, budget=budget, empty=True) for each in rows]
    for number in range(200):
        for each, window in zip(rows, windows, strict=True):
            each.live.add(_key(number))
            window.add(_key(number))

            assert budget.left >= -len(windows) * window_module.KEYS_MIN
    for each, window in zip(rows, windows, strict=True):
        assert list(window) == sorted(each.live)

        window.close()
    assert 100 == budget.left


def test_a_window_on_an_empty_range_reads_nothing() -> None:
    """The window knows that the range is empty, and new keys are added without a read."""
    rows = _Rows()
    window = Window(START, END, rows.read, empty=True)
    window.add(_key(3))

    assert window.known
    assert _key(3) == window.first()
    assert 0 == rows.read_keys
