"""Ops: the requests and answers of the handlers that need no token."""

from __future__ import annotations

from codeq_cluster.api.openapi.types import DescribedAnswer, DescribedOperation, Operations
from codeq_cluster.api.routes import openapi, ops
from codeq_cluster.api.schemas.node_views import NotReady, Word

OPERATIONS: Operations = {
    ops.healthz: DescribedOperation(
        DescribedAnswer("The process serves.", Word("ok")), replicated=False
    ),
    ops.readyz: DescribedOperation(
        DescribedAnswer("The node is ready.", Word("ready"), body=Word),
        DescribedAnswer(
            "The node is not ready.",
            NotReady(
                error="not ready",
                code="not-ready",
                retryable=True,
                request_id="0f8fad5b-d9cb-469f-a165-70867728950e",
                missing=["shard 3 has no leader"],
            ),
            status=503,
            body=NotReady,
            headers={"Retry-After": "Time to wait, in seconds."},
        ),
        replicated=False,
    ),
    ops.metrics: DescribedOperation(
        DescribedAnswer("Prometheus text.", media="text/plain"), replicated=False
    ),
    openapi.spec: DescribedOperation(DescribedAnswer("This document."), replicated=False),
    openapi.page: DescribedOperation(
        DescribedAnswer(
            "The page.",
            media="text/html",
            headers={
                "Content-Security-Policy": "Allows only what the page itself contains.",
                "Referrer-Policy": "`no-referrer`.",
                "X-Content-Type-Options": "`nosniff`.",
            },
        ),
        replicated=False,
    ),
}
