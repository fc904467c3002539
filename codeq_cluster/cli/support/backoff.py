"""Backoff: the flags of a back-off, for tasks and topics."""

from __future__ import annotations

import argparse

from codeq_cluster.core.backoff import POLICIES


def add_backoff(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    """Add the flags; `otherwise` says what holds without them."""
    parser.add_argument(
        "--backoff",
        choices=tuple(POLICIES),
        help=f"how the delay between attempts grows; default: {otherwise}",
    )
    parser.add_argument(
        "--backoff-base-seconds",
        dest="backoff_base",
        type=int,
        metavar="N",
        help="the delay it grows from",
    )
    parser.add_argument(
        "--backoff-max-seconds",
        dest="backoff_max",
        type=int,
        metavar="N",
        help="the longest delay it gives",
    )
