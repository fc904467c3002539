"""The page: one cluster per module, with tokens for every role, and one browser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.acceptance.page.browser import Chromium, Window, chromium, page_settings, url_of
from tests.harness.cluster import LocalCluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that keep backups and give up a callback after its first attempt."""
    place = tmp_path_factory.mktemp("page")
    async with LocalCluster(place, settings=page_settings(place / "backups")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Chromium]:
    """Run one browser for the module."""
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def admin(browser: Chromium, cluster: LocalCluster) -> AsyncIterator[Window]:
    """Open a window of a tenant's admin."""
    async with browser.window(url_of(cluster), token="admin") as window:
        yield window
