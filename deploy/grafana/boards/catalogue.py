"""Catalogue: every board, and its form on disk."""

from __future__ import annotations

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.boards.http import http
from deploy.grafana.boards.overview import overview
from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.queues import queues
from deploy.grafana.boards.raft import raft
from deploy.grafana.boards.storage import storage
from deploy.grafana.boards.webhooks import webhooks

BOARDS = (overview(), queues(), raft(), storage(), http(), webhooks())


def written(board: Board) -> str:
    """Return the board as the JSON that Grafana reads."""
    return JSONEncoder(sort_keys=True, indent=2).encode(board.dashboard.build()) + "\n"
