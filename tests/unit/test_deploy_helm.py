"""Helm chart: rendered by Helm, checked against Kubernetes' schemas, and read by the node."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema
import kubernetes_validate
import pytest
import yaml

from codeq_cluster.config import load
from codeq_cluster.settings import NodeSettings, Signing
from tests.acceptance.runbooks import blocks
from tests.unit.image import image_variables
from tests.unit.shipped import operators

_ROOT = Path(__file__).resolve().parents[2]
_CHART = _ROOT / "deploy" / "helm" / "codeq-cluster"
_SCHEMA = json.loads((_CHART / "values.schema.json").read_text())

# The oldest version of Kubernetes that the chart supports, and the newest known here.
_KUBERNETES = ("1.30", "1.37")

_Values = Mapping[str, Any]
_TOKENS = [{"token": "a-long-random-text", "subject": "s", "tenant": "main"}]
_PROVIDERS = [{"kind": "static", "tokens": _TOKENS}]
_LEAST: _Values = {
    "secret": {
        "clusterSecret": "0123456789abcdef",
        "webhookHmacSecret": "signs-what-is-sent",
        "producerAuth": _PROVIDERS,
        "workerAuth": _PROVIDERS,
    }
}
_MOST: _Values = {
    "replicas": 5,
    "shards": 16,
    "clusterId": "orders",
    "clusterDomain": "k8s.example",
    "fullnameOverride": "broker",
    "image": {"repository": "r.example/codeq", "tag": "1", "pullSecrets": ["pull"]},
    "config": {
        "raft": {"heartbeatMS": 200},
        "auth": {"tenantFallback": "subject"},
        "artifacts": {"provider": "s3", "s3": {"bucket": "files", "accessKeyId": "key-id"}},
    },
    "secret": {
        **_LEAST["secret"],
        "files": {"ARTIFACTS_S3_SECRET_ACCESS_KEY": "artifacts-key"},
    },
    "tls": {"enabled": True, "secretName": "http-certificate"},
    "linkTls": {"enabled": True, "secretName": "link-certificate"},
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
    "storage": {"size": "100Gi", "className": "fast", "accessMode": "ReadWriteOnce"},
    "extraEnv": [{"name": "LOG_LEVEL", "value": "debug"}],
    "antiAffinity": "preferred",
    "spreadOver": "topology.kubernetes.io/zone",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "brokers", "operator": "Exists"}],
    "priorityClassName": "high",
    "podAnnotations": {"c": "d"},
    "podLabels": {"e": "f"},
    "serviceAccount": {"annotations": {"g": "h"}},
    "networkPolicy": {"enabled": True, "http": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"i": "j"}, "tlsConfig": {"serverName": "k"}},
}
_SETS = {"least": _LEAST, "most": _MOST, "existing": {"secret": {"existing": "made-elsewhere"}}}


def _rendered(values: _Values, chart: Path = _CHART) -> list[dict[str, Any]]:
    """Return every object of a release `orders` in the namespace `brokers`."""
    with helm.Chart.load(chart) as loaded:
        files = loaded.render(dict(values), name="orders", namespace="brokers")
    return [
        document
        for path, text in files.items()
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def _one(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """Return the only object of a kind whose name ends with `suffix`."""
    found = [
        each
        for each in objects
        if each["kind"] == kind and str(each["metadata"]["name"]).endswith(suffix)
    ]
    assert 1 == len(found), f"{len(found)} objects {kind} *{suffix}"
    return found[0]


def _pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = _one(objects, "StatefulSet")["spec"]["template"]["spec"]
    return pod


def _container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = _pod(objects)["containers"]
    assert isinstance(container, dict)
    return container


def _settings(objects: list[dict[str, Any]], ordinal: int, directory: Path) -> NodeSettings:
    """Load the settings as a pod's node would, with its mounted files below `directory`."""
    secret = _one(objects, "Secret")["stringData"]
    for key, text in {"artifacts-key": "the key of the bucket", **secret}.items():
        (directory / key).write_text(text)
    file = directory / "node.yaml"
    file.write_text(_one(objects, "ConfigMap")["data"]["node.yaml"])
    variables = image_variables()
    for each in _container(objects)["env"]:
        value = each.get("value", "").replace("/run/codeq/secret", str(directory))
        if "valueFrom" in each:
            assert {"fieldRef": {"fieldPath": "metadata.name"}} == each["valueFrom"]
            value = f"{_one(objects, 'StatefulSet')['metadata']['name']}-{ordinal}"
        variables[each["name"]] = value
    return load(file=file, environment=variables, flags={}).settings


@pytest.mark.parametrize("name", _SETS)
def test_helm_has_nothing_against_the_chart(name: str) -> None:
    """Helm's linter accepts both the minimal and the complete values."""
    report = helm.lint(_CHART, dict(_SETS[name]), strict=True)
    told = [each for each in report["messages"] if each["severity"] > 1]

    assert not report["errors"]
    assert not told


@pytest.mark.parametrize("version", _KUBERNETES)
@pytest.mark.parametrize("name", _SETS)
def test_kubernetes_knows_every_field_of_every_object(name: str, version: str) -> None:
    """Its published schemas allow no unknown field; the monitor's schema is Prometheus's."""
    objects = [each for each in _rendered(_SETS[name]) if each["kind"] != "ServiceMonitor"]
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)

    assert len(objects) >= 6


def test_a_node_starts_with_its_pods_configuration(tmp_path: Path) -> None:
    """Each pod is one of its peers, under the name from the headless service."""
    objects = _rendered(_MOST)
    nodes = [_settings(objects, ordinal, tmp_path) for ordinal in range(5)]
    first = nodes[0]
    nodes_service = _one(objects, "Service", "-nodes")["metadata"]["name"]
    domain = f"{nodes_service}.brokers.svc.k8s.example"

    assert [peer.id for peer in first.peers] == [node.node_id for node in nodes]
    assert [peer.link for peer in first.peers] == [f"broker-{n}.{domain}:18080" for n in range(5)]
    assert f"https://broker-4.{domain}:8080" == first.peers[4].http
    assert ("orders", 16) == (first.cluster_id, first.shards)
    assert 200 == first.raft.heartbeat_ms
    assert Path("/run/codeq/tls/tls.crt") == first.tls.cert_file
    assert Path("/run/codeq/link-tls/ca.crt") == first.link_tls.ca_file
    assert "signs-what-is-sent" == first.webhooks.hmac_secret
    assert (
        "files",
        "the key of the bucket",
    ) == (first.artifacts.s3.bucket, first.artifacts.s3.secret_access_key)


def test_the_example_of_tokens_has_an_operator(tmp_path: Path) -> None:
    """The example is the one in the values' comment, with texts filled in for the tokens."""
    comment = re.search(
        r"^  producerAuth: \[\]\n((?:#.*\n)+)", (_CHART / "values.yaml").read_text(), re.MULTILINE
    )
    assert comment
    example = yaml.safe_load(re.sub("^#", "", comment[1], flags=re.MULTILINE))
    for number, token in enumerate(example[0]["tokens"]):
        token["token"] = f"token-{number}"
    values = {**_LEAST, "secret": {**_LEAST["secret"], "producerAuth": example}}
    settings = _settings(_rendered(values), 0, tmp_path)

    assert [("operator", "operators")] == operators(settings)


def test_the_page_installs_and_grows_a_release() -> None:
    """The page's values render for `helm install`, and its `kubectl exec` names real pods."""
    text = (_ROOT / "deploy" / "README.md").read_text()
    (values,) = (block.body for block in blocks(text) if block.language == "yaml")
    (install,) = re.findall(r"^helm install (.*)$", text, re.MULTILINE)
    (joining,) = re.findall(r"^ +kubectl exec (.*?)^ +```$", text, re.MULTILINE | re.DOTALL)
    objects = _rendered(yaml.safe_load(values) | {"replicas": 5})
    raft = yaml.safe_load(_one(objects, "ConfigMap")["data"]["node.yaml"])["raft"]
    stateful = _one(objects, "StatefulSet")["metadata"]["name"]
    pod, *words = shlex.split(joining.replace("\\\n", " "))
    joined, flags = words[words.index("join") + 1], words[words.index("join") + 2 :]

    assert "orders deploy/helm/codeq-cluster --namespace brokers --values values.yaml" == install
    assert (f"{stateful}-0", f"{stateful}-3") == (pod, joined)
    assert [
        *("--addr", raft["peers"][joined]),
        *("--http", raft["peerHTTPAddrs"][joined]),
    ] == flags


def test_three_nodes_need_their_secrets_and_nothing_else(tmp_path: Path) -> None:
    """The minimal values make a cluster over plain HTTP with nodes on three machines."""
    objects = _rendered(_LEAST)
    settings = _settings(objects, 2, tmp_path)
    affinity = _pod(objects)["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]

    assert settings.peers[2].id == settings.node_id
    assert 3 == len(settings.peers)
    assert settings.tls.cert_file is None
    assert settings.webhooks.signing is Signing.SIGNED
    assert "kubernetes.io/hostname" == rule["topologyKey"]
    assert {"NetworkPolicy", "ServiceMonitor"}.isdisjoint(each["kind"] for each in objects)


@pytest.mark.parametrize("name", _SETS)
def test_every_mounted_file_has_its_volume(name: str) -> None:
    """The data has one volume per node, and it stays when the release is deleted."""
    objects = _rendered(_SETS[name])
    spec = _one(objects, "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    volumes = {each["name"] for each in _pod(objects)["volumes"]} | {claim["metadata"]["name"]}
    mounts = {each["name"]: each for each in _container(objects)["volumeMounts"]}

    assert set(mounts) == volumes
    assert (
        json.loads(image_variables()["PERSISTENCE_CONFIG"])["path"] == mounts["data"]["mountPath"]
    )
    assert all(each.get("readOnly") for name, each in mounts.items() if name != "data")
    assert {"Retain"} == set(spec["persistentVolumeClaimRetentionPolicy"].values())


@pytest.mark.parametrize("name", _SETS)
def test_a_pod_may_do_as_little_as_can_be(name: str) -> None:
    """It has no root, no capability, no token of Kubernetes, and writes only to its data."""
    objects = _rendered(_SETS[name])
    pod, own = _pod(objects), _container(objects)["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert f"useradd --system --uid {pod['securityContext']['runAsUser']} " in (
        (_ROOT / "Dockerfile").read_text()
    )
    assert own["readOnlyRootFilesystem"]
    assert {"drop": ["ALL"]} == own["capabilities"]
    assert own["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False


def test_a_stop_gives_clients_and_node_their_time() -> None:
    """The kubelet kills no sooner than systemd and the engine do, not counting the pause."""
    objects = _rendered(_LEAST)
    pause_s = _container(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    unit = (_ROOT / "deploy" / "systemd" / "codeq-cluster.service").read_text()
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)

    assert pause_s > 0
    assert pause_s + int(stop_s) == _pod(objects)["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(("name", "scheme"), [("least", "HTTP"), ("most", "HTTPS")])
def test_kubernetes_probes_the_nodes_own_routes(name: str, scheme: str) -> None:
    """The readiness probe asks about shards, the other probes about the process."""
    container = _container(_rendered(_SETS[name]))
    probes = {
        kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")
    }

    assert {scheme} == {each["scheme"] for each in probes.values()}
    assert {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    } == {kind: each["path"] for kind, each in probes.items()}


def test_one_node_is_away_at_a_time() -> None:
    """Pods start together, and are disrupted one by one."""
    objects = _rendered(_LEAST)
    budget = _one(objects, "PodDisruptionBudget")["spec"]
    spec = _one(objects, "StatefulSet")["spec"]

    assert 1 == budget["maxUnavailable"]
    assert spec["selector"] == budget["selector"]
    assert "Parallel" == spec["podManagementPolicy"]


@pytest.mark.parametrize("name", _SETS)
def test_every_selector_finds_the_pods(name: str) -> None:
    """Services, budget and network policy select this release's pods and no others."""
    objects = _rendered(_SETS[name])
    spec = _one(objects, "StatefulSet")["spec"]
    wanted = spec["selector"]["matchLabels"]
    labels = spec["template"]["metadata"]["labels"]
    services = [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]

    assert wanted.items() <= labels.items()
    assert [wanted, wanted] == services
    assert _one(objects, "Service", "-nodes")["spec"]["publishNotReadyAddresses"]
    assert _one(objects, "Service", "-nodes")["metadata"]["name"] == spec["serviceName"]


def test_the_link_is_open_to_the_nodes_alone() -> None:
    """The network policy lets clients reach the HTTP port and nothing else."""
    rules = _one(_rendered(_MOST), "NetworkPolicy")["spec"]["ingress"]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in rules}
    own = _one(_rendered(_MOST), "StatefulSet")["spec"]["selector"]

    assert {"link": [{"podSelector": own}], "http": [{"podSelector": {}}]} == by_port


def test_prometheus_is_led_to_each_node_once() -> None:
    """The monitor selects the headless service only, not the clients' service too."""
    objects = _rendered(_MOST)
    monitor = _one(objects, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    found = [
        each["metadata"]["name"]
        for each in objects
        if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
    ]
    (endpoint,) = monitor["endpoints"]

    assert [_one(objects, "Service", "-nodes")["metadata"]["name"]] == found
    assert ("/metrics", "https") == (endpoint["path"], endpoint["scheme"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "clusterSecret"),
        ({**_LEAST, "replicas": 4}, "replicas"),
        ({**_LEAST, "shards": 0}, "shards"),
        ({**_LEAST, "replica": 3}, "replica"),
        ({**_LEAST, "tls": {"enabled": True}}, "secretName"),
        ({**_LEAST, "storage": {"size": "much"}}, "size"),
        ({**_LEAST, "config": {"clusterSecret": "in-the-open-in-a-map"}}, "clusterSecret"),
        ({**_LEAST, "config": {"raft": {"peers": "n1=a:1"}}}, "peers"),
        ({**_LEAST, "config": {"raft.selfId": "n1"}}, "raft.selfId"),
        ({**_LEAST, "config": {"auth": {"producer": []}}}, "producer"),
        ({"secret": {**_LEAST["secret"], "webhookHmacSecret": ""}}, "webhookHmacSecret"),
        ({**_LEAST, "config": {"webhookHmacSecret": "in-the-open-in-a-map"}}, "webhookHmacSecret"),
        ({"secret": {**_LEAST["secret"], "files": {"CLUSTER_SECRET": "a"}}}, "CLUSTER_SECRET"),
        # A directory belongs to one pod, so the other nodes would not find its files.
        ({**_LEAST, "config": {"artifacts": {"provider": "local"}}}, "provider"),
        ({**_LEAST, "config": {"artifacts.provider": "local"}}, "provider"),
        ({**_LEAST, "config": {"artifacts": {"directory": "/data/a"}}}, "directory"),
    ],
)
def test_values_that_make_no_cluster_are_refused(values: _Values, told: str) -> None:
    """Helm refuses before it makes anything, and names the value."""
    with pytest.raises(helm.HelmValuesError, match=told):
        _rendered(values)


def test_an_upgrade_takes_no_member_away(tmp_path: Path) -> None:
    """Pods may be added at any time, and go only once an operator confirms their nodes' removal."""
    chart = tmp_path / "chart"
    shutil.copytree(_CHART, chart)
    helpers = chart / "templates" / "_helpers.tpl"
    there = 'with dict "spec" (dict "replicas" 5) -}}'
    text, replaced = re.subn(r"with lookup .* -}}", there, helpers.read_text())
    helpers.write_text(text)
    name = _one(_rendered(_LEAST), "StatefulSet")["metadata"]["name"]
    both = [f"{name}-3", f"{name}-4"]
    for removed in ([], both[:1]):
        with pytest.raises(helm.HelmError, match=f"{both[len(removed)]} may be a member"):
            _rendered({**_LEAST, "removed": removed}, chart)
    fewer = _rendered({**_LEAST, "removed": both}, chart)
    more = [_rendered({**_LEAST, "replicas": number}, chart) for number in (5, 7)]

    assert 1 == replaced
    assert 3 == _one(fewer, "StatefulSet")["spec"]["replicas"]
    assert [5, 7] == [_one(each, "StatefulSet")["spec"]["replicas"] for each in more]


def test_a_changed_configuration_starts_the_pods_again() -> None:
    """Nodes read their file only at the start, so the pods restart, one by one."""

    def noted(values: _Values) -> dict[str, str]:
        template = _one(_rendered(values), "StatefulSet")["spec"]["template"]
        notes: dict[str, str] = template["metadata"]["annotations"]
        return notes

    before = noted(_LEAST)
    after = noted({**_LEAST, "config": {"logLevel": "debug"}})

    assert before["checksum/config"] != after["checksum/config"]
    assert after["checksum/secret"] == before["checksum/secret"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "Artifacts are off"),
        ({"artifacts": {"provider": "none"}}, "Artifacts are off"),
        ({"artifacts": {"provider": "s3", "s3": {"bucket": "files"}}}, "kept in a bucket"),
        ({"artifacts.provider": "s3", "artifacts.s3.bucket": "files"}, "kept in a bucket"),
    ],
)
def test_an_install_says_whether_artifacts_are_taken(config: _Values, said: str) -> None:
    """The notes also name the command that finds other problems."""
    with helm.Chart.load(_CHART) as loaded:
        files = loaded.render({**_LEAST, "config": config}, name="orders", namespace="brokers")
    (notes,) = [text for path, text in files.items() if path.endswith("NOTES.txt")]

    assert said in notes
    assert "codeq-cluster doctor" in notes


def test_every_value_is_bounded_and_described() -> None:
    """The schema has exactly the keys of the defaults, and each has a description."""
    text = (_CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    jsonschema.Draft7Validator.check_schema(_SCHEMA)
    lines = text.splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"[a-z]\w*:", line) and not before
    ]

    assert {*defaults, "global"} == set(_SCHEMA["properties"])
    # Sections whose keys need no description, and Kubernetes' own words.
    assert {line.split(":")[0] for line in bare} <= {
        *("image", "secret", "service", "storage", "resources", "nodeSelector"),
        *("serviceAccount", "networkPolicy", "serviceMonitor"),
    }
