"""Uploads: artifacts too large for a result's body, sent one by one before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.http import HttpProcessingError

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import invalid_body
from codeq_cluster.api.http.refusals import STALLED, TASK_NOT_FOUND
from codeq_cluster.api.routes.attachments import (
    INVALID_NAME,
    NOT_CONFIGURED,
    content_type_of,
    from_refusal,
    too_large,
)
from codeq_cluster.api.routes.workers import lease_token
from codeq_cluster.api.schemas.task_views import UploadView
from codeq_cluster.artifacts.names import is_name
from codeq_cluster.core.outcomes import Rejected
from codeq_cluster.errors import ArtifactTooLarge


async def upload(call: Call) -> HttpAnswer[UploadView]:
    """Store an artifact of a task the caller holds; the body is its content, of any type.

    The result must name it by the URL in the answer; otherwise it is deleted when the task ends.
    """
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    name = call.request.match_info["artifact"]
    if not is_name(name):
        raise INVALID_NAME
    content_type = content_type_of(call.request.headers.get("Content-Type"))
    token = lease_token(call, None)
    if call.services.artifacts is None:
        raise NOT_CONFIGURED
    limits = call.services.settings.limits
    length = call.request.content_length
    if length is not None and length > limits.max_artifact_bytes:
        raise too_large(limits)
    try:
        uploaded = await call.services.broker.upload(
            call.identity.tenant,
            call.identity.subject,
            task_id,
            name=name,
            content_type=content_type,
            chunks=_chunks(call),
            token=token,
            timeout_s=call.timeout_s,
        )
    except ArtifactTooLarge as error:
        raise too_large(limits) from error
    if isinstance(uploaded, Rejected):
        raise from_refusal(uploaded, not_found=TASK_NOT_FOUND.text)
    view = UploadView(uploaded.name, uploaded.url, uploaded.size, uploaded.etag)
    return reply(view, status=201, headers={"Location": uploaded.url})


async def _chunks(call: Call) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raises when the client stalls."""
    content = call.request.content
    silence_s = call.services.settings.limits.body_timeout_ms / 1000
    while True:
        try:
            async with asyncio.timeout(silence_s):
                chunk = await content.readany()
        except TimeoutError as stalled:
            raise STALLED from stalled
        except (web.RequestPayloadError, HttpProcessingError) as broken:
            raise invalid_body() from broken
        if not chunk:
            return
        yield chunk
