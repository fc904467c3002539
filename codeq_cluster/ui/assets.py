"""Assets: the page's files, read once, and the headers they are sent with.

Their URLs contain a digest of all files. So a browser caches them for ever and never mixes two
releases.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from codeq_cluster.api.http.answer import HEADERS
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX = "index.html"
_ROOT = b"{static}"
_NOT_FOUND = ApiError(404, "not found", "no-such-route")

# Only the page's own files may run, be shown or be fetched, whatever a payload contains.
_PAGE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class _Asset:
    plain: bytes
    packed: bytes
    media: str


class Assets:
    """The files of the package."""

    def __init__(self) -> None:
        found = {
            name: file.read_bytes() for name, file in _walk(files("codeq_cluster.ui") / "static")
        }
        digest = blake2b(digest_size=8)
        for name in sorted(found):
            digest.update(name.encode() + found[name])
        self.root = f"/ui/static/{digest.hexdigest()}"
        self._page = _asset(_INDEX, found.pop(_INDEX).replace(_ROOT, self.root.encode()))
        self._found = {name: _asset(name, content) for name, content in found.items()}

    async def page(self, call: Call) -> web.Response:
        """Return the page, whose script reads the address and picks the view."""
        return _sent(call, self._page, _PAGE_HEADERS)

    async def asset(self, call: Call) -> web.Response:
        """Return a file of this release; 404 for any other."""
        asked = call.request.match_info
        found = self._found.get(asked["name"])
        if found is None or not self.root.endswith(asked["digest"]):
            raise _NOT_FOUND
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        return _sent(call, found, headers)


def _sent(call: Call, asset: _Asset, headers: Mapping[str, str]) -> web.Response:
    packed = "gzip" in call.request.headers.get("Accept-Encoding", "")
    return web.Response(
        body=asset.packed if packed else asset.plain,
        headers={
            **headers,
            "Content-Type": asset.media,
            "Vary": "Accept-Encoding",
            **({"Content-Encoding": "gzip"} if packed else {}),
        },
    )


def _asset(name: str, content: bytes) -> _Asset:
    return _Asset(content, gzip.compress(content, mtime=0), _TYPES[name.rpartition(".")[2]])


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{prefix}{each.name}/")
        else:
            yield f"{prefix}{each.name}", each
