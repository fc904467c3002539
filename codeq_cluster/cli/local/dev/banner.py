"""Banner: what a development cluster prints when it is ready; every line works as printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from codeq_cluster.cli.local.dev.plan import NO_EXTRAS, Extras, PlannedNode
from codeq_cluster.cli.support.dev_cluster import TOKEN

_TASK = '{"command":"greet","payload":{"name":"world"}}'
_CLAIM = '{"commands":["greet"],"waitSeconds":5}'
_RESULT = '{"status":"COMPLETED","result":{"greeting":"hello world"}}'


def banner(
    nodes: Sequence[PlannedNode], directory: Path, *, shards: int, extras: Extras = NO_EXTRAS
) -> str:
    """Return the text, with a task's life as three shell commands, one per node."""
    create, claim, result = (f"{nodes[step % len(nodes)].url}/v1/codeq/tasks" for step in range(3))
    curl = f"curl -sS -w '\\n' -H 'Authorization: Bearer {TOKEN}'"
    width = max(len(node.id) for node in nodes)
    listed = "\n".join(f"  {node.id:<{width}}  {node.url}" for node in nodes)
    counted = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    others = "".join(
        f"\n  token  {token}  (the same in tenant {tenant}, no operator)"
        for tenant, token in extras.tokens.items()
        if tenant
    )
    if extras.virtual_time:
        others += "\n  time   virtual; move it with POST /v1/codeq/dev/time (docs/virtual-time.md)"
    return f"""
READY: {counted}, {shards} shards
{listed}
  page   {nodes[0].url}/ui
  token  {TOKEN}  (producer, worker, admin and operator; development only){others}
  data   {directory}

Create a task, claim it, finish it (any node takes any request):

  {curl} {create} -d '{_TASK}'

  task=$({curl} {claim}/claim -d '{_CLAIM}'); echo "$task"
  id=$(printf %s "$task" | grep -o '"id": *"[^"]*"' | head -n 1 | cut -d '"' -f 4)

  {curl} "{result}/$id/result" -d '{_RESULT}'

Stop with Ctrl-C; the data stays. Next: docs/start.md, or codeq-cluster --help.
"""
