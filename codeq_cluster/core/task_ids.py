"""Task ids: random, except for a tag of the tenant.

All tenants of a shard share one space of ids. An import may keep an id only if it has the tag of
the importing tenant; otherwise the task gets an id that follows from the tenant and the old id.
Either way only the importing tenant's own data decide. So nobody learns from an import whether
another tenant has a task of some id, and nobody can take that id from it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

from codeq_cluster.core.sharding import with_shard

# 32 of 128 bits: ids of two tenants are never alike, and those of one are as good as never.
_TAG_CHARS = 8
# After the tag come the four characters that `with_shard` may change.
_TAG_FROM, _TAG_TO = -12, -4
_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def task_id(tenant: str, random: bytes) -> str:
    """Return a task id of a tenant, in the usual 8-4-4-4-12 form.

    Args:
        random: 16 bytes, of which the tag replaces four.
    """
    text = random.hex()
    return grouped(text[:20] + _tag(tenant) + text[-4:])


def tag_of(task_id: str) -> str:
    """Return the tag of a task's tenant."""
    return task_id[_TAG_FROM:_TAG_TO]


def derived(tenant: str, cause: str) -> str:
    """Return the task id that follows from a cause within the tenant; the same every time."""
    return task_id(tenant, blake2b(f"{tenant}/{cause}".encode(), digest_size=16).digest())


def grouped(text: str) -> str:
    """Return 32 hexadecimal characters in the usual 8-4-4-4-12 form."""
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def kept(tenant: str, old: str, *, home: int | None, shards: int) -> str:
    """Return the id that a task of another cluster has once this tenant imports it.

    Args:
        tenant: The importing tenant.
        old: The task's id in the other cluster.
        home: The shard that its keys give it; a new id is on it, so that they can be kept.
    """
    if _FORM.fullmatch(old) and tag_of(old) == _tag(tenant):
        return old
    made = derived(tenant, old)
    return made if home is None else with_shard(made, shards=shards, wanted=home)


@lru_cache(maxsize=1024)
def _tag(tenant: str) -> str:
    return blake2b(
        tenant.encode(), digest_size=_TAG_CHARS // 2, person=b"codeq task id"
    ).hexdigest()
