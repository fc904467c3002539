"""Plan: ports and configuration of a development cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.cli.local.dev.plan import Extras, document, plan, port_base_of, require_free
from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.config import load
from codeq_cluster.errors import ConfigInvalid


@pytest.mark.parametrize("base", [1, 8080, 45_535, 55_533, 55_534, 65_533])
def test_every_port_is_in_range_and_used_once(tmp_path: Path, base: int) -> None:
    """HTTP and link ports follow the base wherever it is."""
    nodes = plan(tmp_path, nodes=3, port_base=base)

    ports = [port for node in nodes for port in (node.port, node.link_port)]
    assert [base, base + 1, base + 2] == [node.port for node in nodes]
    assert 6 == len(set(ports))
    assert all(1 <= port <= 65_535 for port in ports)


@pytest.mark.parametrize("base", [0, 65_534])
def test_a_base_that_leaves_the_range_is_refused(tmp_path: Path, base: int) -> None:
    """The line names the variable and its bound."""
    with pytest.raises(UsageRefused, match=rf"first port {base} \(.*\): must be 1 to 65533"):
        plan(tmp_path, nodes=3, port_base=base)


def test_the_flag_beats_the_variable_beats_the_default() -> None:
    """The port base has the same order of sources as every setting."""
    assert 1 == port_base_of(1, {"CODEQ_PORT_BASE": "2"})
    assert 2 == port_base_of(None, {"CODEQ_PORT_BASE": "2"})
    assert 8080 == port_base_of(None, {})
    with pytest.raises(ConfigInvalid, match="CODEQ_PORT_BASE=x"):
        port_base_of(None, {"CODEQ_PORT_BASE": "x"})


def test_the_written_configuration_is_one_a_node_takes(tmp_path: Path) -> None:
    """Every node names itself, knows all peers and listens where the plan says."""
    nodes = plan(tmp_path, nodes=3, port_base=9000)
    secret_file = tmp_path / "secret"
    secret_file.write_text("0123456789abcdef\n")

    for node in nodes:
        node.directory.mkdir()
        content = document(node, nodes, shards=5, secret_file=secret_file)
        node.config_file.write_text(yaml.safe_dump(content))
        settings = load(file=node.config_file).settings

        assert (node.id, node.port) == (settings.node_id, settings.port)
        assert ("127.0.0.1", node.link_port) == (settings.link_host, settings.link_port)
        assert [peer.url for peer in nodes] == [peer.http for peer in settings.peers]
        assert (node.data_directory, 5) == (settings.data_dir, settings.shards)
        assert "0123456789abcdef" == settings.cluster_secret
        assert "local" == settings.artifacts.provider
        assert tmp_path / "artifacts" == settings.artifacts.directory
        assert tmp_path / "backups" == settings.backup.directory
        scopes = settings.auth.producer[0].tokens[0].scopes
        assert {*WORKER_SCOPES, "codeq:admin", "codeq:operator"} == set(scopes)


def test_a_node_serves_no_other_host_name_than_localhost(tmp_path: Path) -> None:
    """A site whose name leads to this machine reaches nothing."""
    nodes = plan(tmp_path, nodes=1, port_base=9000)
    secret_file = tmp_path / "secret"
    secret_file.write_text("0123456789abcdef\n")
    nodes[0].directory.mkdir()
    content = document(nodes[0], nodes, shards=1, secret_file=secret_file)
    nodes[0].config_file.write_text(yaml.safe_dump(content))

    assert ("localhost",) == load(file=nodes[0].config_file).settings.allowed_hosts


def test_a_taken_port_is_named_with_its_node(tmp_path: Path) -> None:
    """Both kinds of ports are tried before anything starts."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        for nodes in (
            plan(tmp_path, nodes=1, port_base=port),
            plan(tmp_path, nodes=1, port_base=port - 10_000),
        ):
            with pytest.raises(ConfigInvalid, match=f"port {port} of node n1 is taken"):
                require_free(nodes)


def test_virtual_time_keeps_to_itself(tmp_path: Path) -> None:
    """No backup and no link can carry its tasks into a cluster of real time."""
    nodes = plan(tmp_path, nodes=1, port_base=9000)
    real, virtual = (
        document(
            nodes[0], nodes, shards=1, secret_file=tmp_path, extras=Extras(virtual_time=is_virtual)
        )
        for is_virtual in (False, True)
    )

    assert "backup" in real
    assert "backup" not in virtual
    assert real["clusterId"] != virtual["clusterId"]
