"""Doctor: its findings on configurations, disks, clocks and certificates."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from wsgiref.handlers import format_date_time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from codeq_cluster import __version__
from codeq_cluster.cli.main import main
from codeq_cluster.cli.operate.doctor.finding import Finding, FindingLevel, certificate
from codeq_cluster.cli.operate.doctor.local import local_findings
from codeq_cluster.cli.operate.doctor.nodes import clock
from codeq_cluster.config import load
from tests.harness.certificates import Authority
from tests.harness.ports import dead_url

_DAY_S = 86400.0


def _found(directory: Path, **flags: str) -> dict[str, Finding]:
    names = {name.replace("__", "."): value for name, value in flags.items()}
    configuration = load(
        flags={
            "persistenceConfig.path": str(directory / "data"),
            "clusterSecret": "a-secret-of-this-test-and-of-no-cluster",
            "raft.selfId": "n1",
            "raft.peers": "n1=127.0.0.1:18080",
            "auth.producer": '[{"kind":"static","tokens":[{"token":"t"}]}]',
            "allowProducerAsWorker": "true",
            **names,
        }
    )
    return {each.check: each for each in local_findings("flags", configuration)}


def test_keys_of_codeq_are_worth_a_look(tmp_path: Path) -> None:
    """The configuration is valid, but some of its keys have no effect."""
    data = {"persistenceConfig.path": str(tmp_path), "allowProducerAsWorker": "true"}
    provider = '[{"kind":"static","tokens":["t"]}]'
    loaded = load(
        environment={"REDIS_ADDR": "redis:6379", "TIMEZONE": "UTC", "AUTH_PRODUCER": provider},
        flags=data,
    )

    finding = local_findings("flags", loaded)[0]

    assert (
        FindingLevel.WARN,
        "`codeq-cluster config` says what becomes of each",
    ) == (finding.level, finding.todo)
    assert "valid, but not taken as they are: redisAddr, timezone" == finding.text


@pytest.mark.parametrize(
    ("providers", "level", "text"),
    [
        ('[{"kind":"static","tokens":["t"]}]', FindingLevel.WARN, "nobody: no node can be let in"),
        (
            '[{"kind":"static","tokens":[{"token":"t","scopes":["codeq:admin"]}]}]',
            FindingLevel.WARN,
            "nobody: no node can be let in",
        ),
        (
            '[{"kind":"static","tokens":[{"token":"t","scopes":["codeq:operator"]}]}]',
            FindingLevel.OK,
            "static",
        ),
        (
            '[{"kind":"hs256","secret":"0123456789abcdef0123456789abcdef"}]',
            FindingLevel.OK,
            "whom an issuer gives the scope codeq:operator",
        ),
    ],
)
def test_a_cluster_that_nobody_may_command_is_found(
    tmp_path: Path, providers: str, level: FindingLevel, text: str
) -> None:
    """The doctor can tell if all tokens are in the configuration; an admin is no operator."""
    found = _found(tmp_path, auth__producer=providers)["operator"]

    assert found.level is level
    assert found.text.startswith(text)


@asynccontextmanager
async def _node(
    *,
    version: str = __version__,
    ahead_s: float = 0,
    code: int = 200,
    offers: Mapping[str, str] | None = None,
    group: Mapping[str, object] | None = None,
) -> AsyncIterator[str]:
    """Serve the requests of the doctor; yields the base URL."""

    async def answer(request: web.Request) -> web.Response:
        headers = {"Date": format_date_time(time.time() + ahead_s)}
        if request.path == "/openapi.json":
            said = {"info": {"version": version}, "x-node": offers or {}}
            return web.json_response(said, headers=headers)
        if request.path == "/v1/codeq/raft/status" and code != 200:
            return web.json_response({"error": "invalid token"}, status=code)
        if request.path == "/v1/codeq/raft/status" and group is not None:
            return web.json_response({"groups": [group]}, headers=headers)
        return web.json_response({"status": "ok"}, headers=headers)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


async def _doctor(*words: str) -> int:
    """Run the command in a thread beside this loop, which serves the node."""
    return await asyncio.to_thread(main, ["doctor", *words])


async def test_every_check_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finding that is not ok says what to do; the worst one sets the exit code."""
    monkeypatch.chdir(tmp_path)
    async with _node(version="0.0.1", ahead_s=-3600, code=401) as url:
        code = await _doctor("--url", url, "--json")

    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert 3 == code
    assert {
        "reachable": "ok",
        "ready": "ok",
        "version": "warn",
        "token": "fail",
        "clock": "fail",
        "config": "skipped",
    } == {name: row["level"] for name, row in rows.items()}
    assert all(row["todo"] for row in rows.values() if row["level"] != "ok")
    assert "behind this machine's" in rows["clock"]["text"]


async def test_a_healthy_node_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A skipped check is no failure."""
    monkeypatch.chdir(tmp_path)
    async with _node(version=__version__, ahead_s=0, code=200) as url:
        code = await _doctor("--url", url)

    output = capsys.readouterr().out
    assert 0 == code, output
    assert "FAIL" not in output
    assert "--config" in output


async def test_a_wrong_configuration_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is a finding beside the other checks, and names the key."""
    monkeypatch.chdir(tmp_path)
    async with _node(version=__version__, ahead_s=0, code=200) as url:
        code = await _doctor("--url", url, "--set", "durability=never")

    assert 1 == code
    assert "durability=never" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "levels"),
    [
        (("none", "refused"), [FindingLevel.WARN, FindingLevel.WARN]),
        (("local", "unsigned"), [FindingLevel.OK, FindingLevel.WARN]),
        (("s3", "signed"), [FindingLevel.OK, FindingLevel.OK]),
        (("tape", "sealed"), []),
    ],
)
async def test_a_running_node_reports_whether_it_accepts_artifacts_and_webhooks(
    said: tuple[str, str],
    levels: list[FindingLevel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The check needs neither configuration nor token, and ignores words of later releases."""
    monkeypatch.chdir(tmp_path)
    offers = dict(zip(("artifacts", "webhooks"), said, strict=True))
    async with _node(version=__version__, ahead_s=0, code=200, offers=offers) as url:
        code = await _doctor("--url", url, "--json")

    rows = json.loads(capsys.readouterr().out)["findings"]
    found = [row["level"] for name in offers for row in rows if row["check"] == name]
    assert 0 == code
    assert levels == found


@pytest.mark.parametrize(
    ("said", "finding"),
    [
        (("fsync", "thread"), ("ok", "fsync, the log is synced by a thread")),
        (("fsync", "kernel"), ("ok", "fsync, the log is synced by the kernel")),
        (("os", "none"), ("warn", "os: an answered write can be lost in a power cut")),
    ],
)
async def test_the_doctor_names_the_durability_and_the_syncer_of_a_node(
    said: tuple[str, str],
    finding: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The finding has the node's present state, not its configuration."""
    monkeypatch.chdir(tmp_path)
    group = dict(zip(("durability", "logSync"), said, strict=True))
    async with _node(group=group) as url:
        await _doctor("--url", url, "--json")

    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert finding == (rows["durability"]["level"], rows["durability"]["text"])


@pytest.mark.parametrize(("aside", "level"), [(0, "ok"), (3, "warn")])
async def test_the_doctor_tells_of_what_is_set_aside(
    aside: int,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The finding counts it over all shards and names the page."""
    monkeypatch.chdir(tmp_path)
    async with _node(group={"aside": aside}) as url:
        await _doctor("--url", url, "--json")

    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert level == rows["aside"]["level"]
    assert (level == "warn") == ("runbooks/set-aside.md" in rows["aside"]["todo"])


async def test_the_doctor_names_the_node_whose_address_it_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also a dead one that was named by an address that its cluster does not know."""
    dead, forwarded = dead_url("node"), dead_url("forwarded")
    peer = {"id": "n3", "httpAddr": dead, "connected": False, "awaySince": "2026-01-31T12:00:00Z"}
    async with _node(group={"selfId": "n1", "peers": [peer]}) as url:
        code = await _doctor("--url", url, "--url", forwarded, "--json")
    found = json.loads(capsys.readouterr().out)["findings"]
    reached = {each["about"]: each["text"] for each in found if each["check"] == "reachable"}

    assert 1 == code
    assert reached.pop(url).startswith("n1: it answers in ")
    assert {forwarded: "n3: it takes no connection"} == reached
    assert any(each["check"] == "member" and each["text"].startswith("n3: n1 ") for each in found)


async def test_the_doctor_finds_a_node_that_has_begun_a_cluster_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is ready, and nobody it should work with reaches it."""
    async with _node(group={"selfId": "n4", "leaderId": "n4", "peers": []}) as alone:
        peer = {"id": "n4", "httpAddr": alone, "connected": False, "awaySince": ""}
        async with _node(group={"selfId": "n1", "leaderId": "n1", "peers": [peer]}) as url:
            code = await _doctor("--url", url, "--json")
    found = json.loads(capsys.readouterr().out)["findings"]
    [member] = [each for each in found if each["check"] == "member"]

    assert 1 == code
    assert "n4: n1 cannot reach it" == member["text"]
    assert "a cluster of its own" in member["todo"]


def test_the_doctor_says_before_the_start_whether_artifacts_and_webhooks_work(
    tmp_path: Path,
) -> None:
    """Artifacts and webhooks are off until a place and a secret are configured."""
    off = _found(tmp_path)
    on = _found(
        tmp_path,
        artifacts__provider="local",
        artifacts__directory=str(tmp_path / "artifacts"),
        webhookHmacSecret="signs-what-is-sent",
    )
    lax = _found(tmp_path, webhooks__unsigned="allow")["webhooks"]
    shared = _found(tmp_path, webhookHmacSecret="signs-what-is-sent", webhooks__signing="cluster")[
        "webhooks"
    ]

    assert (FindingLevel.WARN, FindingLevel.WARN) == (off["artifacts"].level, off["webhooks"].level)
    assert "artifacts.provider" in off["artifacts"].todo
    assert "webhookHmacSecret" in off["webhooks"].todo
    assert (FindingLevel.OK, FindingLevel.OK) == (on["artifacts"].level, on["webhooks"].level)
    assert lax.level is FindingLevel.WARN
    assert "unsigned" in lax.text
    assert shared.level is FindingLevel.WARN
    assert "one secret for all tenants" in shared.text
    assert "pose as another one" in shared.todo


def test_artifacts_that_cannot_be_written_are_a_fault(tmp_path: Path) -> None:
    """A file in place of the directory is found."""
    (tmp_path / "taken").write_text("")
    found = _found(
        tmp_path,
        artifacts__provider="local",
        artifacts__directory=str(tmp_path / "taken" / "artifacts"),
    )

    assert found["artifacts"].level is FindingLevel.FAIL


@pytest.mark.parametrize(
    ("name", "value"), [("PERSISTENCE_PATH", "data"), ("PERSISTENCE_CONFIG", '{"path": "data"}')]
)
async def test_a_node_that_its_environment_configures_is_looked_at(
    name: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A container has no configuration file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("AUTH_PRODUCER", '[{"kind":"static","tokens":[{"token":"t"}]}]')
    monkeypatch.setenv("ALLOW_PRODUCER_AS_WORKER", "true")
    async with _node(version=__version__, ahead_s=0, code=200) as url:
        code = await _doctor("--url", url, "--json")

    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert 0 == code, rows
    assert ("ok", "environment") == (rows["config"]["level"], rows["config"]["about"])


@pytest.mark.parametrize(
    ("ahead_s", "level"),
    [
        (0, FindingLevel.OK),
        (-1.5, FindingLevel.OK),
        (5, FindingLevel.WARN),
        (-61, FindingLevel.FAIL),
    ],
)
def test_clocks_that_differ_are_reported(ahead_s: float, level: FindingLevel) -> None:
    """A lease's grace tolerates two seconds; a minute is a failure."""
    assert clock("http://n1", ahead_s).level is level


@pytest.mark.parametrize(
    ("days", "level"),
    [
        (-1, FindingLevel.FAIL),
        (3, FindingLevel.WARN),
        (13.9, FindingLevel.WARN),
        (15, FindingLevel.OK),
    ],
)
def test_a_certificate_is_to_be_renewed_in_time(days: float, level: FindingLevel) -> None:
    """The limit is two weeks, as in the alert."""
    assert certificate("node.pem", days * _DAY_S).level is level


def test_a_new_directory_is_fine(tmp_path: Path) -> None:
    """The free space is that of the disk it will be on."""
    found = _found(tmp_path)

    assert found["config"].level is FindingLevel.OK
    assert "new" in found["data"].text
    assert "free" in found["disk"].text


def test_a_directory_of_another_node_is_reported(tmp_path: Path) -> None:
    """The doctor finds it before the node refuses to start."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "node.json"
    file.write_text('{"clusterId": "blue", "nodeId": "n1", "shards": 4}')
    foreign = _found(tmp_path)["data"]
    ours = _found(tmp_path, clusterId="blue")["data"]
    file.write_text("{")
    damaged = _found(tmp_path)["data"]

    assert (
        FindingLevel.FAIL,
        FindingLevel.OK,
        FindingLevel.FAIL,
    ) == (foreign.level, ours.level, damaged.level)
    assert "cluster blue" in foreign.text


def test_certificates_are_looked_at(tmp_path: Path) -> None:
    """An expired certificate and an invalid one are found."""
    pair = {"tls__certFile": str(tmp_path / "c.pem"), "tls__keyFile": str(tmp_path / "k.pem")}
    Authority().issue("n1", days=5).write(tmp_path / "c.pem", tmp_path / "k.pem")
    ending = _found(tmp_path, **pair)["certificate"]
    (tmp_path / "c.pem").write_text("none")
    broken = _found(tmp_path, **pair)["certificate"]

    assert (FindingLevel.WARN, FindingLevel.FAIL) == (ending.level, broken.level)
