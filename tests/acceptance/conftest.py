"""Acceptance: real processes, one cluster per module, every fault undone after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio

from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that dial each other directly."""
    async with LocalCluster(tmp_path_factory.mktemp("direct")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(direct_cluster: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Yield the module's cluster and undo every fault afterwards."""
    yield direct_cluster
    await direct_cluster.restore()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxied_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes whose links can be cut."""
    async with LocalCluster(tmp_path_factory.mktemp("proxied"), shards=2, cuttable=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cuttable_cluster(proxied_cluster: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Yield the module's cluster of cuttable links and heal it afterwards."""
    yield proxied_cluster
    await proxied_cluster.restore()


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[RecordingClient]:
    """Yield a client of the module's cluster."""
    async with RecordingClient(cluster.urls) as session:
        yield session


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the nodes' logs with a failure."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, LocalCluster):
                report.sections.append(("nodes", value.logs()))
                break
    return report
