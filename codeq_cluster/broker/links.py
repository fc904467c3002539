"""Links: the URLs by which results name the artifacts that the broker stores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

from codeq_cluster.core.task import Artifact

# If files come with their result, the upload's id begins with a digest of all of them. A retry with
# the same files is recognised by it.
DIGEST_CHARS = 24
_NONCE_BYTES = 8
_UPLOAD = r"[0-9a-f]{16}(?:[0-9a-f]{24})?"
_LINK = re.compile(rf"(?:https?://[^?#]*)?/v1/codeq/tasks/([^/?#]+)/artifacts/({_UPLOAD})/([^?#]+)")


def new_upload(digest: str = "") -> str:
    """Return a new, unique id of an upload.

    Args:
        digest: `DIGEST_CHARS` characters, or empty.
    """
    assert len(digest) in {0, DIGEST_CHARS}
    return digest + os.urandom(_NONCE_BYTES).hex()


def link(base: str, task_id: str, upload: str, name: str) -> str:
    """Return an artifact's URL: a path, or an absolute URL below `base` if that is not empty."""
    return f"{base}/v1/codeq/tasks/{task_id}/artifacts/{upload}/{quote(name)}"


def target(url: str, task_id: str) -> tuple[str, str] | None:
    """Return the upload and name of this task's artifact at a URL, or None.

    The host is ignored: a node may have several names, and no other host serves this task.
    """
    found = _LINK.fullmatch(url)
    if found is None or found[1] != task_id:
        return None
    return found[2], unquote(found[3])


def uploads(artifacts: Iterable[Artifact], task_id: str) -> tuple[str, ...]:
    """Return the uploads of this task that the artifacts refer to, each once."""
    targets = (target(each.url, task_id) for each in artifacts)
    return tuple(dict.fromkeys(found[0] for found in targets if found is not None))
