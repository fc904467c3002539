"""Configuration: the rows of docs/configuration.md, from this broker's keys and codeQ's."""

from __future__ import annotations

import re

from codeq_cluster.config.reference import FOREIGN, ForeignKey
from codeq_cluster.config.values import default_of
from codeq_cluster.settings import KEYS, SettingKey

COMING = "## Coming from codeQ's configuration"


def described(page: str) -> str:
    """Return the page with each key's row rewritten from the settings.

    The page keeps its sections and the order of its rows. A row without a key is kept and a key
    without a row is not added, so that the tests can report both.
    """
    ours, heading, codeq = page.partition(COMING)
    rows = {key.name: row(key) for key in KEYS}
    ignored = {each.name: _ignored(each) for each in FOREIGN.values() if each.reason}
    return _replaced(ours, rows) + heading + _replaced(codeq, ignored)


def _replaced(text: str, rows: dict[str, str]) -> str:
    return re.sub(
        r"^\| `([^`]+)` \|.*$", lambda found: rows.get(found[1], found[0]), text, flags=re.MULTILINE
    )


def row(key: SettingKey) -> str:
    """Return the table row of a key."""
    env = f"`{key.env}`" + (", `…_FILE`" if key.secret else "")
    default = default_of(key)
    shown = f"`{default}`" if default else ""
    return f"| `{key.name}` | {env} | {shown} | {key.kind.allowed} | {key.meaning} |"


def _ignored(key: ForeignKey) -> str:
    env = f" `{key.env}` " if key.env else "  "
    return f"| `{key.name}` |{env}| ignored: {key.reason} |"
