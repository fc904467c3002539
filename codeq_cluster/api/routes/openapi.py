"""OpenAPI: the description of this interface, for programs and for people."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

from aiohttp import web

from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.call import Call

DOCUMENT = web.AppKey("openapi", bytes)  # The document of one node, encoded once.

_PAGE = (files("codeq_cluster.api") / "web" / "docs.html").read_bytes()


def _inline(tag: bytes) -> str:
    # Browsers run and style only content with these hashes, whatever is injected into the page.
    [text] = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), _PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"


_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_inline(b'script')}; style-src {_inline(b'style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def spec(call: Call) -> HttpAnswer[dict[str, Any]]:
    """Describe every route as OpenAPI 3.1."""
    return HttpAnswer(call.request.app[DOCUMENT])


async def page(call: Call) -> web.Response:  # noqa: ARG001, every handler takes the call
    """Show the description as a self-contained page."""
    return web.Response(body=_PAGE, headers=_PAGE_HEADERS)
