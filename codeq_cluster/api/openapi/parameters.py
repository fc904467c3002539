"""Parameters: query parameters and headers that several operations share, and their refusals."""

from __future__ import annotations

from codeq_cluster.api.http.refusals import no_flag, no_integer, too_high, too_low
from codeq_cluster.api.openapi.types import Parameter
from codeq_cluster.api.schemas import paging

CURSOR = "q1Zx0cVQcmVzaXplLWltYWdlAAX___5n"  # An example.


def query(name: str, text: str, *, required: bool = False, **schema: object) -> Parameter:
    """Return a query parameter: a text, unless `type` says otherwise."""
    return Parameter(name, "query", text, {"type": "string"} | schema, required)


def header(name: str, text: str, kind: str = "string") -> Parameter:
    """Return a header that a caller may send."""
    return Parameter(name, "header", text, {"type": kind})


PAGE = (
    query(
        "limit",
        "Maximum number of entries.",
        type="integer",
        minimum=1,
        maximum=paging.COUNT_MAX,
        default=paging.COUNT_DEFAULT,
    ),
    query("cursor", "The `cursor` of the previous page; absent for the first page."),
)
PAGED = (
    no_integer("limit"),
    too_low("limit", 1),
    too_high("limit", paging.COUNT_MAX),
    paging.INVALID_CURSOR,
)
ERROR = query("error", "Only those with exactly this error.")
DRY_RUN = query(
    "dryRun", "`true` counts the tasks and changes nothing.", type="boolean", default=False
)
NO_DRY_RUN = no_flag("dryRun")
