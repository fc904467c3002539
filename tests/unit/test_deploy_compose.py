"""Compose files: checked against Compose's own schema, and read by the node they configure.

Where there is an engine, deploy/verify-compose.sh lets its Compose read them too.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from codeq_cluster.config import load
from codeq_cluster.settings import ArtifactProvider
from codeq_cluster.testing.ports import free_ports
from tests.codeq import configurations
from tests.harness.certificates import Authority
from tests.harness.cluster import LocalCluster
from tests.unit.image import image_directories, image_variables
from tests.unit.shipped import operators

_ROOT = Path(__file__).resolve().parents[2]
_SHIPPED = _ROOT / "deploy" / "compose"

_NODES = {"three": 3, "five": 5, "three-tls": 3, "five-tls": 5}
_VARIABLES = {
    "CLUSTER_SECRET": "0123456789abcdef",
    "WEBHOOK_HMAC_SECRET": "signs-what-is-sent",
    "PRODUCER_TOKEN": "producer-token",
    "WORKER_TOKEN": "worker-token",
    "ADMIN_TOKEN": "admin-token",
    "OPERATOR_TOKEN": "operator-token",
    "CERTIFICATES": "/etc/codeq/certificates",
}
# The mount points of volumes in codeQ's compose files.
_CODEQ_VOLUMES = {"/var/lib/codeq/pebble", "/var/lib/codeq/artifacts"}
_ALONE = {
    "AUTH_PRODUCER": '[{"kind": "static", "tokens": ["a-token-of-the-tests"]}]',
    "ALLOW_PRODUCER_AS_WORKER": "true",
}
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)(?P<kind>:-|:\?)(?P<rest>[^}]*)\}")


def _services(file: Path, variables: Mapping[str, str] = _VARIABLES) -> dict[str, dict[str, Any]]:
    """Return the services as Compose sees them, with variables substituted and `extends` resolved.

    Raises:
        KeyError: A variable that must be set is not.
    """
    services: dict[str, dict[str, Any]] = _filled(file, variables)["services"]
    return {name: _whole(service, file, variables) for name, service in services.items()}


def _filled(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    def value(found: re.Match[str]) -> str:
        if found["kind"] == ":-":
            return variables.get(found["name"]) or found["rest"]
        return variables[found["name"]]

    def filled(node: Any) -> Any:
        match node:
            case str():
                text = _VARIABLE.sub(value, node)
                assert "${" not in text, f"{file.name}: {node}"
                return text
            case dict():
                return {key: filled(each) for key, each in node.items()}
            case list():
                return [filled(each) for each in node]
        return node

    document = yaml.safe_load(file.read_text())
    return {"services": filled(document["services"])}


def _whole(service: dict[str, Any], file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    own = dict(service)
    if "build" in own:
        own["build"] = (file.parent / own["build"]).resolve()
    extended = own.pop("extends", None)
    if extended is None:
        return own
    source = file.parent / extended["file"]
    base = _whole(_filled(source, variables)["services"][extended["service"]], source, variables)
    # Mappings are merged. No service overrides a list of what it extends, so lists need no merge.
    assert not any(isinstance(base.get(key), list) for key in own)
    return base | own | {"environment": base["environment"] | own["environment"]}


@pytest.mark.parametrize("file", [_ROOT / "docker-compose.yml", *sorted(_SHIPPED.glob("*.yml"))])
def test_compose_knows_every_word_of_the_file(file: Path) -> None:
    """The schema of the Compose specification accepts the file."""
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", file),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert 0 == checked.returncode, checked.stdout + checked.stderr


def test_every_file_is_looked_at() -> None:
    """A new file needs its test."""
    files = {file.stem for file in _SHIPPED.glob("*.yml")}

    assert {*_NODES, "node"} == files


@pytest.mark.parametrize("name", _NODES)
def test_each_node_starts_with_what_its_container_gets(name: str) -> None:
    """All nodes have the same list of peers, and each is in it."""
    services = _services(_SHIPPED / f"{name}.yml")
    for node_id, service in services.items():
        variables = image_variables() | service["environment"]
        settings = load(file=None, environment=variables, flags={}).settings
        secure = name.endswith("-tls")
        scheme = "https" if secure else "http"

        assert node_id == settings.node_id
        assert list(services) == [peer.id for peer in settings.peers]
        assert [f"{each}:18080" for each in services] == [peer.link for peer in settings.peers]
        assert [f"{scheme}://{n}:8080" for n in services] == [peer.http for peer in settings.peers]
        assert secure == (settings.tls.cert_file is not None)
        assert secure == (settings.link_tls.ca_file is not None)
        # Nothing outside of a node's volumes can be written, and it would be lost with the
        # container.
        assert f"backups:{settings.backup.directory}" in service["volumes"]
        # All nodes share this volume; otherwise the others would not find a file that one stored.
        assert settings.artifacts.provider is ArtifactProvider.LOCAL
        assert f"artifacts:{settings.artifacts.directory}" in service["volumes"]
        assert _VARIABLES["WEBHOOK_HMAC_SECRET"] == settings.webhooks.hmac_secret
        assert not settings.webhooks.allow_private
        assert [("operator", "operators")] == operators(settings)
    assert _NODES[name] == len(services)


@pytest.mark.parametrize("name", _NODES)
def test_no_two_nodes_share_volumes_ports_or_certificates(name: str) -> None:
    """These are volumes, ports and, if used, certificates."""
    services = _services(_SHIPPED / f"{name}.yml")
    ports = {port.split(":")[0] for each in services.values() for port in each["ports"]}
    sources = {volume.split(":")[0] for each in services.values() for volume in each["volumes"]}
    sources -= {"backups", "artifacts"}

    assert _NODES[name] == len(ports)
    assert _NODES[name] * (2 if name.endswith("-tls") else 1) == len(sources)


def test_every_place_to_write_belongs_to_the_user_of_the_image() -> None:
    """A new volume gets the owner and mode of its directory in the image."""
    mounted = {
        volume.split(":")[1]
        for name in _NODES
        for service in _services(_SHIPPED / f"{name}.yml").values()
        for volume in service["volumes"]
    }

    assert image_directories() == mounted - {"/certificates"} | _CODEQ_VOLUMES


def test_a_container_keeps_its_data_where_the_environment_of_codeq_says() -> None:
    """Otherwise the data would be in the image's own place, not in the mounted volume."""
    for variables in configurations.raft_environments().values():
        environment = image_variables() | variables | configurations.CLUSTER_SECRET
        settings = load(file=None, environment=environment, flags={}).settings

        assert _CODEQ_VOLUMES == {str(settings.data_dir), str(settings.artifacts.directory)}
        assert "0.0.0.0" == settings.host
    assert Path("/data") == load(environment=image_variables() | _ALONE).settings.data_dir


def test_the_example_asks_for_every_secret_and_sets_the_rest() -> None:
    """The completed example configures a node as the files do by themselves."""
    example = dict(
        line.split("=", 1)
        for line in (_ROOT / ".env.example").read_text().splitlines()
        if re.match(r"[A-Z0-9_]+=", line)
    )
    asked = {name for name in _VARIABLES if name != "CERTIFICATES"}

    filled = _services(_ROOT / "docker-compose.yml", {**example, **_VARIABLES})

    assert asked == {name for name, value in example.items() if not value}
    assert _services(_ROOT / "docker-compose.yml") == filled


def test_three_nodes_are_those_of_the_file_at_the_root() -> None:
    """Whichever file is used, three nodes on one engine are configured the same way."""
    services = _services(_ROOT / "docker-compose.yml")
    always = {name: service for name, service in services.items() if "profiles" not in service}

    assert _services(_SHIPPED / "three.yml") == always


def test_what_watches_the_nodes_is_there_when_it_is_asked_for() -> None:
    """The profile `obs` starts monitoring for this machine only, with this repository's files."""
    services = _services(_ROOT / "docker-compose.yml")
    watching = {name: each for name, each in services.items() if each.get("profiles") == ["obs"]}
    mounts = {
        target: _ROOT / source
        for each in watching.values()
        for source, target, *_ in (volume.split(":") for volume in each["volumes"])
        if source.startswith("./")
    }

    assert {"prometheus", "grafana"} == set(watching)
    for each in watching.values():
        assert ["127.0.0.1"] == [port.split(":")[0] for port in each["ports"]]
    assert all(source.is_dir() for source in mounts.values())
    home = watching["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    directory, _, file = home.rpartition("/")
    assert (mounts[directory] / file).is_file()


def test_prometheus_and_grafana_find_the_nodes_and_each_other() -> None:
    """Prometheus scrapes every node; Grafana queries Prometheus and finds the dashboards."""
    services = _services(_ROOT / "docker-compose.yml")
    nodes = [name for name, service in services.items() if "profiles" not in service]
    prometheus = yaml.safe_load((_ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    provisioning = _ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "codeq-cluster.yml").read_text())[
        "providers"
    ]
    pins = (_ROOT / "pyproject.toml").read_text()
    version = re.findall(r'"grafana-foundation-sdk==\d+!([\d.]+)"', pins)

    assert [f"{node}:8080" for node in nodes] == job["static_configs"][0]["targets"]
    assert "http://prometheus:9090" == source["url"]
    assert prometheus["global"]["scrape_interval"] == source["jsonData"]["timeInterval"]
    assert any(
        volume.split(":")[1] == provider["options"]["path"]
        for volume in services["grafana"]["volumes"]
    )
    assert f"grafana/grafana:{version[0]}" == services["grafana"]["image"]


@pytest.mark.parametrize("missing", _VARIABLES)
def test_a_cluster_without_a_secret_does_not_begin(missing: str) -> None:
    """The error names the missing variable."""
    given = {name: value for name, value in _VARIABLES.items() if name != missing}
    with pytest.raises(KeyError, match=missing):
        _services(_SHIPPED / "three-tls.yml", given)


async def test_the_health_check_finds_a_node_over_tls(tmp_path: Path) -> None:
    """The check exits as in the engine: 0 while the node serves, otherwise another code."""
    kind, program, flag, code = _services(_SHIPPED / "three-tls.yml")["n1"]["healthcheck"]["test"]
    (nobodys,) = free_ports(1)

    async def checked(port: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, flag, code),
            stderr=asyncio.subprocess.DEVNULL,
            env={"PORT": str(port)},
        )
        return await process.wait()

    async with LocalCluster(tmp_path, nodes=1, authority=Authority()) as cluster:
        found = await checked(cluster.nodes["n1"].http_port)
        missed = await checked(nobodys)

    assert ("CMD", "python3") == (kind, program)
    assert 0 == found
    assert missed != 0


def test_every_command_of_the_page_means_the_same_project() -> None:
    """Another project has other volumes, and asks for ports that are taken."""
    page = (_ROOT / "deploy" / "README.md").read_text()
    example = (_ROOT / ".env.example").read_text()
    [project] = re.findall(r"^COMPOSE_PROJECT_NAME=(.+)$", example, re.MULTILINE)

    assert {project} == set(re.findall(r"docker compose -p (\S+)", page))
