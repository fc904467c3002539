"""Revising: the changes that a requeue makes to the payloads of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Raw

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.broker.requests.triage import Revising
from codeq_cluster.core.bounds import is_deeper
from codeq_cluster.core.merge_patch import NoObject, Patch
from codeq_cluster.settings import LimitSettings

# Every payload is changed in one step of the loop.
PATCH_BYTES_MAX = 65_536

NO_PATCH = bad_request("invalid 'patch' (must be a JSON object)", "invalid-patch")
PATCH_TOO_LARGE = bad_request(f"invalid 'patch' (at most {PATCH_BYTES_MAX} bytes)", "out-of-range")
PAYLOAD_OF_ONE = bad_request(
    "invalid 'payload' (must be alone, for a single id)", "invalid-payload"
)
NULL = Raw(b"null")  # What stands in a body for no change.


def payload_too_large(limits: LimitSettings) -> ApiError:
    """Return the error for a payload that no create would take."""
    return bad_request(
        f"invalid 'payload' (at most {limits.max_body_bytes} bytes, "
        f"{limits.payload_depth_max} levels)",
        "out-of-range",
    )


def revising(call: Call, *, patch: Raw, payload: Raw, ids: Sequence[str]) -> Revising | None:
    """Return the change to payloads that a body asks for; None for none.

    Args:
        patch: A merge patch of each payload.
        payload: Replaces the payload of the only task that `ids` names.
        ids: Of the tasks; empty for a selection of another kind.

    Raises:
        ApiError: 400 if the patch is not an object or too large, or the payload is not for one
            task, is beside a patch, or would not be taken from a producer.
    """
    if payload != NULL:
        if len(ids) != 1 or patch != NULL:
            raise PAYLOAD_OF_ONE
        text = bytes(payload).decode()
        if not _fits(call, text):
            raise payload_too_large(call.services.settings.limits)
        return Revising(lambda _: text, adds=len(payload))
    if patch == NULL:
        return None
    if len(patch) > PATCH_BYTES_MAX:
        raise PATCH_TOO_LARGE
    try:
        read = Patch(bytes(patch).decode())
    except NoObject as error:
        raise NO_PATCH from error
    return Revising(partial(_patched, call, read), adds=len(patch))


def _patched(call: Call, patch: Patch, payload: str) -> str | None:
    """Return the patched payload; None if it is not an object or would be too large."""
    try:
        made = patch.applied_to(payload)
    except NoObject:
        return None
    return made if _fits(call, made) else None


def _fits(call: Call, payload: str) -> bool:
    """Return whether a create would take this payload."""
    limits = call.services.settings.limits
    return len(payload.encode()) <= limits.max_body_bytes and not is_deeper(
        payload, limits.payload_depth_max
    )
