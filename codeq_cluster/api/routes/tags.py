"""Tags: what finds a task, and its metadata, in the body of a new task and in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field, json_text
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import several
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import NO_TASK
from codeq_cluster.api.routes.task_views import TASK_ID
from codeq_cluster.auth import Access
from codeq_cluster.codec.levels import TAGS_FROM
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.tags import (
    METADATA_BYTES_MAX,
    SEPARATOR,
    TAG_NAME_BYTES_MAX,
    TAG_VALUE_BYTES_MAX,
    TAGS_MAX,
    ChangeTags,
    in_order,
    metadata_fault,
    removed_fault,
    tags_fault,
)

ROUTES = Routes(__name__, __doc__, Access.PRODUCER)

INVALID_TAGS = bad_request("invalid 'tags'", "invalid-tags")
INVALID_METADATA = bad_request("invalid 'metadata'", "invalid-metadata").because(
    f"must be JSON of at most {METADATA_BYTES_MAX} bytes"
)
INVALID_TAG = bad_request("invalid 'tag' (use name:value)", "invalid-tag")
TOO_EARLY = TooEarly(TAGS_FROM, "tags and 'metadata' need")
NO_METADATA = Raw(b"null")
_BOUNDS = (
    f"names of 1 to {TAG_NAME_BYTES_MAX} bytes without a colon, values of 1 to "
    f"{TAG_VALUE_BYTES_MAX} bytes"
)
_TOO_MANY = from_rejection(Rejected(Rejection.TOO_MANY_TAGS, str(TAGS_MAX)))

TAG = several(
    "tag",
    "Only tasks with this tag, as `name:value`, the newest first; may be repeated, for tasks that "
    "have all of them.",
    INVALID_TAG,
    TOO_EARLY,
)


def tags_field() -> Any:
    """Declare the tags of a new task."""
    return field(
        f"Texts by which lists find the task: at most {TAGS_MAX}, {_BOUNDS}.",
        refused=(INVALID_TAGS, TOO_EARLY),
        maxProperties=TAGS_MAX,
    )


def metadata_field() -> Any:
    """Declare the metadata of a new task."""
    return field(
        f"Any JSON but null, at most {METADATA_BYTES_MAX} bytes: for the worker and the webhook. "
        "Nothing is found by it.",
        default=NO_METADATA,
        refused=(INVALID_METADATA, TOO_EARLY),
    )


def read_tags(
    call: Call, tags: dict[str, str] | None, metadata: Raw
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the tags of a new task as they are kept, and the JSON text of its metadata.

    Raises:
        ApiError: One of these is refused.
    """
    found = in_order(tags or {})
    why = tags_fault(found)
    if why:
        raise INVALID_TAGS.because(why)
    limits = call.services.settings.limits
    text = json_text(
        metadata, "metadata", depth_max=limits.payload_depth_max, error=INVALID_METADATA.text
    )
    if metadata_fault(text):
        raise INVALID_METADATA
    if found or text:
        TOO_EARLY.check(call)
    return found, text


def asked_tags(call: Call) -> tuple[tuple[str, str], ...]:
    """Return the tags that the query names, in its order.

    Raises:
        ApiError: One of them is refused.
    """
    if not call.request.query_string:
        return ()
    return named_tags(call, call.request.query.getall(TAG.name, ()))


def named_tags(call: Call, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return tags from texts `name:value`, in their order.

    Raises:
        ApiError: One of them is refused.
    """
    found = []
    for text in texts:
        name, _, value = text.partition(SEPARATOR)
        if tags_fault(((name, value),)):
            raise INVALID_TAG
        found.append((name, value))
    if len(found) > TAGS_MAX:
        raise INVALID_TAG.because(f"at most {TAGS_MAX}")
    if found:
        TOO_EARLY.check(call)
    return tuple(found)


class TagsBody(Body):
    """Changes of a task's tags; those that it does not name stay."""

    set: dict[str, str] | None = field(
        f"Tags that the task has afterwards, whatever values it had: {_BOUNDS}.",
        refused=(INVALID_TAGS, TOO_EARLY, _TOO_MANY),
    )
    remove: list[str] | None = field(
        "Names of tags that it has no more; a name that it has not is no error. Not one of `set`.",
        refused=(INVALID_TAGS,),
    )


_TAGS = Schema(TagsBody)


class TaggedView(Struct):
    """All tags of a task."""

    id: str
    tags: dict[str, str]


@ROUTES(
    "PATCH",
    "/tasks/{id}/tags",
    Answer("All tags that the task has now.", TaggedView(TASK_ID, {"env": "prod", "user": "42"})),
    body=_TAGS,
    example={"set": {"env": "prod"}, "remove": ["draft"]},
    errors=(NO_TASK,),
)
async def change_tags(call: Call) -> HttpAnswer[TaggedView]:
    """Set and remove tags of a task, whatever its state; repeated, or empty, it changes nothing.

    A task has at most one value of a name, so `set` replaces it. Lists show the change at once.
    The time of the task's last update stays as it is.
    """
    body = _TAGS.decode(call.text)
    put, remove = in_order(body.set or {}), tuple(dict.fromkeys(body.remove or ()))
    why = tags_fault(put) or removed_fault(remove)
    both = sorted({name for name, _ in put} & set(remove))
    if both:
        why = f"{both[0]} is in set and in remove"
    if why:
        raise INVALID_TAGS.because(why)
    task_id = call.task_id(not_found=NO_TASK)
    TOO_EARLY.check(call)
    outcome = await call.services.broker.change_tags(
        ChangeTags(id=task_id, tenant=call.identity.tenant, put=put, remove=remove),
        timeout_s=call.timeout_s,
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome, not_found=NO_TASK.text)
    return reply(TaggedView(outcome.id, dict(outcome.tags)))
