"""Command `import`: import one tenant of a backup into a running cluster."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from codeq_cluster.backup.catalogue import complete, manifest_of, verify
from codeq_cluster.backup.manifest import BackupManifest
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.backup.tenant_export import named_tenant
from codeq_cluster.backup.tenant_reader import LeftOut, TenantReader
from codeq_cluster.backup.tenant_rows import DEFAULT_TENANT, tenant_name
from codeq_cluster.broker.requests.importer import arrival_bytes
from codeq_cluster.cli.support.asking import Verbs, asks
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note, table
from codeq_cluster.cli.support.place import add_place_options, place_of
from codeq_cluster.cli.support.progress import Bar, bar
from codeq_cluster.client import Operator
from codeq_cluster.codec.arrivals import TASKS_MAX, Arrivals, encode_arrivals
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.limit import SHARERS_MAX
from codeq_cluster.core.task import State
from codeq_cluster.errors import BackupFailed, CodeqError
from codeq_cluster.portions import in_parts

# Each shard's leader decides on a request in one step, ahead of all others; 128 tasks take a few
# milliseconds.
_TASKS = TASKS_MAX // 2
_BYTES = 2**20
_WITHIN_S = 120.0  # Room for an election or a restarting node.
_IDS_MAX = 1000  # Shown in the summary, per reason.

_WORDS = {
    "imported": "tasks imported",
    "present": "tasks that were there already",
    "renamed": "tasks with another id here: they were created in a tenant of another name",
    "ended": "tasks whose retention is over",
    "forgottenKeys": "idempotency keys left out of the imported tasks",
    "keysTaken": "tasks left out: another task has their idempotency or unique key (--forget-keys)",
    "keysApart": "tasks left out: their idempotency key cannot be kept (--forget-keys)",
    "tooLarge": "tasks left out: too large for raft.entryBytesMax",
    "itemsImported": "topics, pauses and subscriptions imported",
    "itemsPresent": "topics, pauses and subscriptions that were there already",
    "itemsRefused": "topics, limits, pauses and subscriptions left out: the tenant has as many as "
    "it may",
    "topicsApart": "topics left out: the limit that they name is not here, is on another shard, or "
    f"has {SHARERS_MAX} queues",
    "callbacksLeftOut": "callbacks left out: of tasks deleted before, or too many of one task",
}
_REFUSED = ("keysTaken", "keysApart", "tooLarge", "itemsRefused", "topicsApart")


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "import",
        help="import one tenant of a backup into a running cluster",
        description="Import one tenant of a backup, or of an export, into a running cluster. Tasks "
        "that exist already are left unchanged, so the same command resumes an interrupted import. "
        "The token must be that of an admin of the tenant in the cluster.",
    )
    parser.add_argument("place", metavar="PLACE", help="a directory, or s3://BUCKET/PREFIX")
    add_place_options(parser)
    parser.add_argument(
        "--tenant", required=True, metavar="NAME", help="`_` or default: the default tenant"
    )
    parser.add_argument("--id", default="", help="of the backup; default: the newest with it")
    parser.add_argument(
        "--as",
        dest="other",
        metavar="NAME",
        help="the tenant's name in the cluster; default: the same",
    )
    parser.add_argument(
        "--forget-keys",
        action="store_true",
        help="drop idempotency keys that cannot be kept, or are in use",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only report what it would do; changes nothing"
    )
    asks(parser, Operator, _import, deadline_s=_WITHIN_S)


async def _import(operator: Operator, options: argparse.Namespace) -> Exit:
    place = place_of(options.place, options)
    manifest = _chosen(place, options.id, options.tenant)
    options.tenant = await asyncio.to_thread(named_tenant, place, manifest, options.tenant)
    done = _Done(manifest.id, options)
    sending = _Sending(operator, manifest, done)
    await sending.nothing()
    with bar("verifying", manifest.size) as shown:
        await asyncio.to_thread(verify, place, manifest, passed=shown.passed)
    tenant_reader = TenantReader(place=place, manifest=manifest, tenant=tenant_name(options.tenant))
    if not options.forget_keys:
        await _refuse_keys_apart(operator, tenant_reader, done)
    if done.tenant != options.tenant:
        placed = partial(
            tenant_reader.placed_parents,
            tenant=tenant_name(done.tenant),
            shards=await _shards(operator),
        )
        tenant_reader = replace(tenant_reader, parents=await asyncio.to_thread(placed))
    with bar("importing", manifest.tasks, what="tasks") as shown:
        await sending.all_of(tenant_reader, shown)
    done.count("callbacksLeftOut", tenant_reader.left_out.callbacks)
    return done.print_summary()


def _chosen(place: BackupTarget, backup: str, tenant: str) -> BackupManifest:
    """Return the backup named, or the newest complete one that can hold the tenant."""
    if backup:
        return manifest_of(place, backup)
    for manifest in complete(place):
        if manifest.tenant in {None, tenant, DEFAULT_TENANT if tenant == "default" else tenant}:
            return manifest
    raise BackupFailed(f"there is no complete backup with a tenant {tenant} in {place.where}")


@dataclass(slots=True)
class _Done:
    """The import's progress so far."""

    backup: str
    options: argparse.Namespace
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WORDS, 0))
    ids: dict[str, list[object]] = field(default_factory=lambda: {name: [] for name in _REFUSED})

    @property
    def tenant(self) -> str:
        """The tenant's name in this cluster."""
        return str(self.options.other or self.options.tenant)

    def count(self, name: str, number: int) -> None:
        self.numbers[name] += number

    def add(self, answer: Mapping[str, object]) -> None:
        """Add the counts of one answer."""
        for name in self.numbers:
            value = answer.get(name, 0)
            if isinstance(value, list):
                self.count(name, len(value))
                self.ids[name] += value[: _IDS_MAX - len(self.ids[name])]
            elif isinstance(value, int):
                self.count(name, value)

    def print_summary(self) -> Exit:
        """Print the summary; anything left out makes it an error."""
        if self.options.json:
            shown: dict[str, object] = {
                "backup": self.backup,
                "tenant": self.options.tenant,
                "as": self.tenant,
                "dryRun": self.options.dry_run,
                **self.numbers,
                "leftOut": {name: ids for name, ids in self.ids.items() if ids},
            }
            document(shown, compact=True)
        else:
            rows = [(n, _WORDS[name]) for name, n in self.numbers.items() if n]
            table(("NUMBER", "OF"), rows or [(0, _WORDS["imported"])])
            for name, ids in self.ids.items():
                if ids:
                    note(f"{name}: {', '.join(map(str, ids[:10]))}{', …' if ids[10:] else ''}")
        if self.options.dry_run:
            note("nothing is changed; leave --dry-run out to import")
        return Exit.ERROR if any(self.ids.values()) else Exit.OK


async def _refuse_keys_apart(operator: Operator, tenant_reader: TenantReader, done: _Done) -> None:
    """Refuse before the import if keys of tasks cannot be kept."""
    shards = await _shards(operator)
    manifest = tenant_reader.manifest
    if manifest.shards % shards == 0 and done.tenant == done.options.tenant:
        return

    def counted() -> int:
        tenant = tenant_name(done.tenant)
        return sum(
            tenant_reader.keys_apart(part, tenant=tenant, shards=shards) for part in manifest.parts
        )

    apart = await asyncio.to_thread(counted)
    if apart:
        raise BackupFailed(
            f"the keys of {apart} tasks cannot be kept by a cluster of {shards} shards in tenant "
            f"{done.tenant}: leave these keys out with --forget-keys"
        )


async def _shards(operator: Operator) -> int:
    shards = (await operator.raft_status()).get("numGroups")
    assert isinstance(shards, int), "the cluster does not say how many shards it has"
    return shards


class _Sending:
    """Sends a backup's tenant in parts, each repeated until it is answered."""

    def __init__(self, operator: Operator, manifest: BackupManifest, done: _Done) -> None:
        self._operator = operator
        self._manifest = manifest
        self._done = done
        self._record = ""  # Of the audit; of all parts.

    async def nothing(self) -> None:
        """Send an empty part: the token, tenant and formats are checked before anything is read.

        Raises:
            Refused: The cluster does not take this backup from this caller.
        """
        await self._answered(Arrivals(), dry_run=True)

    async def all_of(self, tenant_reader: TenantReader, shown: Bar) -> None:
        """Send policies and subscriptions, then the tasks, those that are HELD last.

        Raises:
            BackupFailed: The tenant's quota is full.
        """
        governed = 0
        for part in tenant_reader.manifest.parts:
            items = await asyncio.to_thread(list, tenant_reader.governing(part))
            governed += len(items)
            for some in in_parts(items, count_max=TASKS_MAX):
                await self._send(Arrivals(items=some))
        sent, held = await self._tasks(tenant_reader, held=False, passed=shown.passed)
        if held:
            # After all others: a task that is next of a unique key comes after the key's holder.
            again = replace(tenant_reader, left_out=LeftOut())
            await self._tasks(again, held=True, passed=lambda _count: None)
        if not governed + sent + held:
            raise BackupFailed(
                f"{tenant_reader.manifest.id} holds nothing of a tenant {self._done.options.tenant}"
            )

    async def _tasks(
        self, tenant_reader: TenantReader, *, held: bool, passed: Callable[[int], None]
    ) -> tuple[int, int]:
        """Send the tasks that are HELD or the others; return their number, and that of the rest."""
        sent = rest = 0

        def chosen() -> Iterator[Arrival]:
            nonlocal rest
            parts = [tenant_reader.tasks(part, passed=passed) for part in manifest.parts]
            for arrival in chain(*parts, tenant_reader.on_their_way()):
                if held == (arrival.task.state is State.HELD):
                    yield arrival
                else:
                    rest += 1

        manifest = tenant_reader.manifest
        batches = in_parts(chosen(), arrival_bytes, size_max=_BYTES, count_max=_TASKS)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            sent += len(batch)
            await self._send(Arrivals(tasks=batch))
        return sent, rest

    async def _send(self, arrivals: Arrivals) -> None:
        answer = await self._answered(arrivals, dry_run=self._done.options.dry_run)
        self._done.add(answer)
        if answer.get("left"):
            self._done.print_summary()
            raise CodeqError(
                f"the tenant's budget {answer.get('limit')} is used up: raise it or make room, and "
                "run the command again for the rest"
            )

    async def _answered(self, arrivals: Arrivals, *, dry_run: bool) -> Mapping[str, object]:
        part = encode_arrivals(arrivals)
        answer = await self._operator.import_part(
            part,
            backup=self._manifest.id,
            tenant=self._done.tenant,
            level=self._manifest.level,
            forget_keys=self._done.options.forget_keys,
            dry_run=dry_run,
            record=self._record,
        )
        self._record = str(answer.get("record", ""))
        return answer
