"""Command `audit`: list the changes by admins and operators of a tenant, the newest first.

The token must be that of an admin of the tenant. An operator's change to the cluster is recorded in
the operator's own tenant.
"""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.output import add_paging, columns, gathered, listed
from codeq_cluster.cli.support.times import add_times
from codeq_cluster.client import Operator

_COLUMNS = columns("at actor action target detail")


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit", help="list the changes by admins and operators", description=__doc__
    )
    add_paging(parser)
    add_times(parser)
    asks(parser, Operator, _list)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    listed(options, await gathered(options, operator.audit), name="records", columns=_COLUMNS)
