"""The described interface: what schemathesis makes of the document is answered as it says.

Every operation gets data that fits its description and data that does not, at each boundary and
at random, from one seed.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi import checks

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.http.middleware import Route
from codeq_cluster.api.openapi.document import encoded
from codeq_cluster.auth import Access, Role
from codeq_cluster.config.static_tokens import SCOPES
from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    LimitSettings,
    NodeSettings,
    Unsigned,
    WebhookSettings,
)
from codeq_cluster.testing.cluster import LocalCluster
from tests.integration.http.described_checks import (
    BASE,
    allow_names_what_is_served,
    the_request_is_named,
    what_does_not_fit_is_refused,
    what_fits_is_taken,
)

SHARDS = 2
DEADLINE_S = 20.0

CONFIG = SchemathesisConfig.from_dict(
    {
        "seed": 1,
        "cache": {"enabled": False},
        "suppress-health-check": ["all"],
        # Neither what a node answered before nor what stands in its source may change the data.
        "analysis": {"constants": {"enabled": False}},
        "phases": {
            "fuzzing": {
                "extra-data-sources": {"responses": False},
                "error-feedback": {"enabled": False},
            }
        },
        "generation": {
            "deterministic": True,
            "database": "none",
            "max-examples": 15,
            # Who may call what is a test of its own.
            "with-security-parameters": False,
        },
        "checks": {
            # Which 503 is described, the checks of status and of schema know.
            "not_a_server_error": {"expected-statuses": ["2xx", 304, "4xx", 503]},
            "negative_data_rejection": {"expected-statuses": ["4xx"]},
            # What there is, and in which state, is no matter of the data.
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", 304, 403, 404, 409, 412, 416]
            },
        },
    }
)


def _token(name: str, *scopes: str, **claims: object) -> dict[str, object]:
    return {"token": name, "subject": name, "tenant": "acme", "scopes": list(scopes), **claims}


def _static(*tokens: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"kind": "static", "tokens": list(tokens)}]


WORKER = _token("worker", *(scope for scope in SCOPES if scope not in set(Role)), eventTypes=["*"])
SETTINGS: dict[str, object] = {
    "auth": {
        "producer": _static(
            _token("producer"), *(_token(role.name.lower(), str(role)) for role in Role)
        ),
        "worker": _static(WORKER),
    },
    # Waits are tested elsewhere; here they would only take time.
    "limits": {"claimWaitSecondsMax": 0, "resultWaitSecondsMax": 0},
    "webhooks": {"allowPrivate": True},
}
DESCRIBED = NodeSettings(
    node_id="n1",
    cluster_id="",
    cluster_secret="",
    peers=(),
    data_dir=Path(),
    shards=SHARDS,
    limits=LimitSettings(claim_wait_seconds_max=0, result_wait_seconds_max=0),
    artifacts=ArtifactSettings(provider=ArtifactProvider.LOCAL, directory=Path()),
    webhooks=WebhookSettings(unsigned=Unsigned.ALLOW),
)
DOCUMENT = json.loads(encoded(ROUTES, DESCRIBED))
ROUTE_OF = {(route.method, route.path): route for route in ROUTES}

# What a node posts to the targets it is given goes nowhere.
NOBODY = "http://127.0.0.1:1/hook"
schemathesis.openapi.format("uri", st.just(NOBODY))
schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)

TOKEN_OF = {
    Access.OPEN: "",
    Access.PRODUCER: "producer",
    Access.WORKER: "worker",
    Access.TENANT: "producer",
    Access.ANY: "producer",
    Access.ADMIN: "admin",
    Access.OPERATOR: "operator",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A node, and a way to send to it."""

    url: str
    session: requests.Session

    def send(self, path: str, body: object, *, token: str, method: str = "POST") -> dict[str, str]:
        """Send what must be taken, now or by a busy machine later; return the answer's body."""
        until = time.monotonic() + DEADLINE_S
        while True:
            answer = self.session.request(
                method,
                self.url + BASE + path,
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                timeout=DEADLINE_S,
            )
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > until:
                break
        assert answer.ok, answer.text
        told: dict[str, str] = answer.json() if answer.content else {}
        return told

    def answer(self, case: Case) -> None:
        """Send a case by a token that its operation asks for, and check the answer."""
        token = TOKEN_OF[_route(case).access]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        case.call_and_validate(
            base_url=self.url,
            session=self.session,
            headers=headers,
            excluded_checks=[
                checks.allow_header_conformance,
                checks.ignored_auth,
                checks.negative_data_rejection,
                checks.positive_data_acceptance,
            ],
            additional_checks=[
                allow_names_what_is_served,
                what_fits_is_taken,
                what_does_not_fit_is_refused,
                the_request_is_named,
            ],
        )

    def living(self, path: str) -> dict[str, str]:
        """Make what an operation's path names; return the parameters that name it."""
        if path.startswith(f"{BASE}/workers/subscriptions/"):
            wanted = {"callbackUrl": NOBODY, "eventTypes": ["elsewhere"]}
            made = self.send("/workers/subscriptions", wanted, token="worker")
            return {"id": made["subscriptionId"]}
        task = {"command": "living", "payload": {}, "maxAttempts": 1}
        task_id = self.send("/tasks", task, token="producer")["id"]
        claim = {"commands": ["living"]}
        while self.send("/tasks/claim", claim, token="worker").get("id") != task_id:
            pass  # Left by an operation that gives its task back.
        named = {"id": task_id, "command": "living"}
        if "/dlq/" in path:
            self.send(f"/tasks/{task_id}/abandon", {}, token="worker")
        elif "{upload}" in path:
            url = f"/tasks/{task_id}/artifacts/a/b"
            stored = self.send(url, "content", token="worker", method="PUT")["url"]
            named |= {"upload": stored.split("/")[-3], "artifact": "a%2Fb"}
            self.send(
                f"/tasks/{task_id}/result",
                {"status": "COMPLETED", "result": 1, "artifacts": [{"name": "a/b", "url": stored}]},
                token="worker",
            )
        return named


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run one node for all operations, in a process of its own."""
    directory = tmp_path_factory.mktemp("described")
    artifacts = {"artifacts": {"provider": "local", "directory": str(directory / "artifacts")}}
    cluster = LocalCluster(directory, nodes=1, shards=SHARDS, settings=SETTINGS | artifacts)
    with (
        asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop,
        requests.Session() as session,
    ):
        loop.run(cluster.__aenter__())
        try:
            yield Served(cluster.nodes["n1"].url, session)
        finally:
            loop.run(cluster.close())


def test_the_document_served_is_the_one_tested(served: Served) -> None:
    """The cases come from the routes, and the node describes the same."""
    answer = served.session.get(f"{served.url}/openapi.json", timeout=DEADLINE_S)

    assert DOCUMENT == answer.json()


@schema.parametrize()
def test_every_operation_answers_as_described(case: Case, served: Served) -> None:
    """Whatever it is sent."""
    served.answer(case)


@schema.include(path_regex=r"/(tasks|subscriptions|dlq)/\{id\}").parametrize()
def test_operations_on_what_exists_answer_as_described(case: Case, served: Served) -> None:
    """Random names name nothing, so here the same goes to tasks, dead letters and subscriptions."""
    where = case.meta.components.get(ParameterLocation.PATH)
    if where is not None and where.mode.is_negative:
        return  # What was to be a wrong path would be a right one.
    living = served.living(case.path)
    case.path_parameters |= {name: living[name] for name in case.path_parameters if name in living}
    served.answer(case)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("token", ["", "unheard-of", "producer", "worker", "admin", "operator"])
def test_who_may_not_call_is_told_so_as_described(served: Served, route: Route, token: str) -> None:
    """No token, a wrong one, and those of other callers."""
    case = schema[route.path][route.method].Case(
        path_parameters=dict.fromkeys(re.findall(r"{(\w+)}", route.path), "x"),
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )
    answer = case.call(base_url=served.url, session=served.session)
    case.validate_response(
        answer,
        checks=[
            checks.status_code_conformance,
            checks.response_schema_conformance,
            checks.response_headers_conformance,
        ],
    )
    allowed = {
        Access.OPEN: True,
        Access.PRODUCER: token in ("producer", "admin"),
        Access.WORKER: token == "worker",
        Access.TENANT: token in ("producer", "worker", "admin"),
        Access.ANY: token in ("producer", "worker", "admin", "operator"),
        Access.ADMIN: token == "admin",
        Access.OPERATOR: token == "operator",
    }[route.access]

    assert (answer.status_code in (401, 403)) != allowed


def _route(case: Case) -> Route:
    return ROUTE_OF[case.operation.method.upper(), case.operation.path]
