"""Zones: their rules are those of the package, whatever the machine has."""

from __future__ import annotations

import struct
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import tzdata

from codeq_cluster.errors import InvalidZone
from codeq_cluster.schedules.zones import LOOK_S, zone_names, zone_of, zone_rules

_RULES = Path(tzdata.__file__).parent / "zoneinfo"


def test_the_rules_are_the_packages_and_never_the_machines(tmp_path: Path) -> None:
    """A machine that takes Berlin for UTC changes nothing."""
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe/Berlin").write_bytes((_RULES / "UTC").read_bytes())
    zone_of.cache_clear()
    zoneinfo.reset_tzpath([str(tmp_path)])
    try:
        machines = datetime(2026, 7, 1, tzinfo=ZoneInfo.no_cache("Europe/Berlin")).utcoffset()
        shown = zone_of("Europe/Berlin").shows(int(datetime(2026, 7, 1, tzinfo=UTC).timestamp()))
    finally:
        zoneinfo.reset_tzpath()

    assert timedelta(0) == machines
    assert "2026-07-01T02:00:00" == shown.isoformat()


def test_the_release_of_the_rules_is_named() -> None:
    """The package's version counts the letters that its release is named by."""
    year, number = map(int, metadata.version("tzdata").split(".")[:2])

    assert f"{year}{chr(ord('a') + number - 1)}" == zone_rules()


def test_every_zone_can_be_read() -> None:
    """Each name in the list has its rules."""
    shown = {name: zone_of(name).offset_s(0) for name in zone_names()}

    assert 500 < len(shown)
    assert 3600 == shown["Europe/Berlin"]


def test_no_zone_changes_twice_between_two_looks() -> None:
    """The search for changes would miss both."""
    closest_s = min(
        later - earlier for name in zone_names() for earlier, later in pairwise(_changes(name))
    )

    assert 2 * LOOK_S < closest_s


def _changes(name: str) -> list[int]:
    """Return when a zone's offset has changed since 1970, as RFC 8536 has it in its file."""
    file = (_RULES / name).read_bytes()
    second = file.index(b"TZif", 1)  # The first part has 32 bits, the second one 64.
    _, _, _, times, types, _ = struct.unpack_from(">6l", file, second + 20)
    at = second + 44
    instants = struct.unpack_from(f">{times}q", file, at)
    kinds = file[at + 8 * times : at + 9 * times]
    offsets = [
        struct.unpack_from(">l", file, at + 9 * times + 6 * kind)[0] for kind in range(types)
    ]
    shifts = (
        zip(instants[1:], pairwise(offsets[kind] for kind in kinds), strict=True) if times else ()
    )
    return [instant for instant, (before, after) in shifts if before != after and instant >= 0]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("../Europe/Berlin", "Europe/Berlin"),
        ("", ""),
        ("x" * 10_000, ""),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    """Names are compared exactly; one that is nearly right is named."""
    with pytest.raises(InvalidZone) as refused:
        zone_of(name)

    assert (f"did you mean {nearest}?" in str(refused.value)) == bool(nearest)
    assert 200 > len(str(refused.value))
