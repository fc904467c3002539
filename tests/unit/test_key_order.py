"""Key order: ranges are read as from sorted keys, at the price of the keys that are in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.key_order import KeyOrder

_KEYS = 2000


class _Compared(bytes):
    """A key that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: bytes) -> bool:
        _Compared.compared += 1
        return bytes.__lt__(self, other)

    def __ge__(self, other: bytes) -> bool:
        _Compared.compared += 1
        return bytes.__ge__(self, other)


@given(
    st.lists(
        st.tuples(st.sampled_from("pdr"), st.integers(0, 3 * _KEYS), st.integers(0, 2 * _KEYS)),
        max_size=60,
    )
)
def test_a_range_has_the_keys_that_are_there(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is put, deleted and put again between two reads, many keys or one."""
    rows: dict[bytes, int] = {}
    order = KeyOrder(rows)
    for what, first, count in steps:
        for n in range(first, first + count if what != "r" else first):
            key = b"%08d" % (n * 7919 % (5 * _KEYS))
            if what == "p":
                order.added += key not in rows
                rows[key] = n
            else:
                rows.pop(key, None)
        start, end = b"%08d" % first, b"%08d" % (first + count)

        assert sorted(key for key in rows if start <= key < end) == order.between(start, end)


def test_reads_of_ranges_do_not_look_at_every_key() -> None:
    """A leader that decides much before it is applied would read them all for each decision."""
    rows: dict[bytes, int] = {_Compared(b"%08d" % (n * 7919 % _KEYS)): n for n in range(_KEYS)}
    order = KeyOrder(rows)
    order.added = _KEYS
    order.between(b"", b"")
    _Compared.compared = 0
    found = [order.between(b"%08d" % n, b"%08d" % (n + 2)) for n in range(0, _KEYS, 2)]

    assert [2] * (_KEYS // 2) == [len(keys) for keys in found]
    assert 40 * len(found) > _Compared.compared > len(found)
