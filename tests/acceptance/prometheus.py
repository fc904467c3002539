"""Prometheus: Debian's package, which scrapes a test's cluster with deploy/prometheus's rules.

Durations in the rules are divided by 120, within bounds that a scrape per second can meet.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from codeq_cluster.settings import environment
from codeq_cluster.testing.ports import free_ports
from tests.harness.cluster import LocalCluster
from tests.harness.http import HttpClient
from tests.harness.servers import Server
from tests.harness.waiting import ClusterError, until

JOB = "codeq-cluster"
RANGE_S = 5  # The shortest range of a rate: even on a busy machine it must contain some scrapes.

_RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules"
_HASTE = 120
# The shortest `for` of an alert: one late scrape on a busy machine must not fire it.
_FOR_S_MIN = 2
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str, http: HttpClient) -> None:
        self._url = url
        self._http = http

    async def query(self, expression: str) -> list[Mapping[str, Any]]:
        """Return the current series of an expression, each with `metric` and `value`."""
        answer = await self._get("query", query=expression)
        assert "vector" == answer["data"]["resultType"], expression
        result: list[Mapping[str, Any]] = answer["data"]["result"]
        return result

    async def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = (await self._get("alerts"))["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def wait_firing(self, *names: str, within_s: float) -> set[str]:
        """Wait until each of these alerts has fired; return all that have fired meanwhile.

        Raises:
            ClusterError: One has not fired in time.
        """
        fired: set[str] = set()

        async def all_have() -> bool:
            fired.update(await self.firing())
            return fired.issuperset(names)

        try:
            await until(all_have, within_s=within_s, what=f"alerts {names}")
        except ClusterError as error:
            raise ClusterError(f"{error}; others: {sorted(fired)}") from error
        return fired

    async def wait_silent(self, *names: str, within_s: float) -> None:
        """Wait until none of these alerts fires."""

        async def silent() -> bool:
            return (await self.firing()).isdisjoint(names)

        await until(silent, within_s=within_s, what=f"silence of {names}")

    async def _get(self, what: str, **parameters: str) -> Mapping[str, Any]:
        answer = await self._http.send("GET", self._url, f"/api/v1/{what}?{urlencode(parameters)}")
        assert 200 == answer.status, (parameters, answer.body)
        text: Mapping[str, Any] = answer.json
        return text


def hastened(rules: str) -> str:
    """Return rules with shortened durations: those of `for` and those in brackets."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found["count"]) * _UNITS_S[found["unit"]] // _HASTE
        least = RANGE_S if found["before"] == "[" else _FOR_S_MIN
        return f"{found['before']}{max(seconds, least)}s{found['after']}"

    return re.sub(
        r"(?P<before>\[|for: )(?P<count>\d+)(?P<unit>[smh])(?P<after>\]|$)",
        shorter,
        rules,
        flags=re.MULTILINE,
    )


@asynccontextmanager
async def scraping(cluster: LocalCluster, directory: Path) -> AsyncIterator[Prometheus]:
    """Run Prometheus on the nodes of a cluster with TLS, with a scrape per second."""
    first = next(iter(cluster.nodes.values()))
    job = {
        "job_name": JOB,
        "scheme": "https",
        "tls_config": {"ca_file": str(first.directory / "ca.pem")},
        "static_configs": [
            {"targets": [f"127.0.0.1:{node.http_port}" for node in cluster.nodes.values()]}
        ],
    }
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    (directory / "rules.yml").write_text(
        "".join(hastened(file.read_text()) for file in _RULES.glob("*.yml"))
    )
    (directory / "prometheus.yml").write_text(
        yaml.safe_dump({"global": every, "rule_files": ["rules.yml"], "scrape_configs": [job]})
    )
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    server = Server(directory / "prometheus.log")
    command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={directory / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    server.start(command, environment())
    try:
        async with HttpClient() as http:
            await until(lambda: _answers(http, url), what="Prometheus ready")
            yield Prometheus(url, http)
    finally:
        await asyncio.to_thread(server.kill)


async def _answers(http: HttpClient, url: str) -> bool:
    try:
        return (await http.send("GET", url, "/-/ready")).status == 200
    except ConnectionError:
        return False
