"""Relay rules: results with follow-ups, and relays to and from other shards."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Finish, Submit
from codeq_cluster.core.relays import KEPT_MS, Relay, Relayed, RelayedTask, RelaysTaken, TakeRelays
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More

from .machine import Caller, Machine, callers, commands, indexes, tenants
from .work_rules import Work, hooks

SHARDS = 2
ORIGINS = (0, 1)

following = st.builds(
    Create,
    command=commands,
    payload=st.sampled_from(['"one"', '"two"']),
    priority=st.sampled_from([0, 5, 9]),
    # Each shard has some of the keys, and two results may name the same one.
    idempotency_key=st.sampled_from(["", "", "k", "k/2", "k/3", "k/4"]),
    delay_ms=st.sampled_from([0, 0, 5]),
    ttl_ms=st.sampled_from([0, 0, 10]),
    webhook=hooks,
).map(lambda each: replace(each, fingerprint=each.payload if each.idempotency_key else ""))

# A request never names one key twice.
follow_ups = st.lists(following, min_size=1, max_size=3).filter(
    lambda all_: (
        max(
            Counter(each.idempotency_key for each in all_ if each.idempotency_key).values(),
            default=1,
        )
        == 1
    )
)


class FollowUps(Work):
    """Results that make tasks, and the leader's reports on what it has sent for them."""

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, done=st.booleans(), following=follow_ups, other=follow_ups)
    def finish(
        self, caller: Caller, done: bool, following: list[Create], other: list[Create]
    ) -> None:
        """End a task with follow-ups, then say the same again, and then something else."""
        submit = self.result(caller, done=done)
        self._finish(submit, following)
        self._finish(replace(submit, request=self.request()), following)
        if other != following:
            self._finish(replace(submit, request=self.request()), other)
        self.ask(replace(submit, request=self.request()))

    def _finish(self, submit: Submit, following: list[Create]) -> None:
        digest = blake2b(repr(following).encode(), digest_size=16).hexdigest()
        self.ask(Finish(submit=submit, next=tuple(following), digest=digest, shards=SHARDS))

    @precondition(lambda self: self.items_of(ItemKind.RELAY))
    @rule(index=indexes, most=st.integers(1, 3), skew=st.sampled_from([0, 0, 0, 1]))
    def relays_taken(self, index: int, most: int, skew: int) -> None:
        """Report that the other shard has some relays, or one of a number that none has."""
        relays = [each for each in self.items_of(ItemKind.RELAY) if isinstance(each, Relay)]
        to = relays[index % len(relays)].to
        line = sorted((each for each in relays if each.to == to), key=lambda each: each.number)
        reported = tuple((each.tenant, each.id, each.number + skew) for each in line[:most])
        self.ask(RelaysTaken(to=to, number=reported[-1][2] - skew, relays=reported))

    @precondition(lambda self: self.items_of(ItemKind.RELAY))
    @rule(short_ms=st.sampled_from([0, 0, 1]))
    def outlive_relays(self, short_ms: int) -> None:
        """Let so much time pass that every relay that was taken is deleted, or almost."""
        self.let_time_pass(passed_ms=KEPT_MS - short_ms, most=5, leases_too=True)


class Relays(Machine):
    """Relays that other shards send here."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, list[Relayed]] = {origin: [] for origin in ORIGINS}

    @rule(
        origin=st.sampled_from(ORIGINS),
        tenant=tenants,
        creates=st.lists(following, min_size=1, max_size=3),
        step=st.sampled_from([1, 1, 1, 2]),
        repeated=st.integers(0, 2),
        lacking=st.sampled_from([0, 0, 0, 0, 1]),
        ago_ms=st.sampled_from([0, 3, 5, 10, 60, -7]),
    )
    def take_relays(
        self,
        *,
        origin: int,
        tenant: str,
        creates: list[Create],
        step: int,
        repeated: int,
        lacking: int,
        ago_ms: int,
    ) -> None:
        """Take new relays behind some old ones; with a gap before them, take nothing.

        Numbers may be missing, because those that were set aside are not sent. They were caused a
        while ago, or by a clock that is ahead of this shard's.
        """
        sent = self.sent[origin]
        last = sent[-1].number if sent else 0
        new = [
            Relayed(
                last + lacking + step + position,
                RelayedTask(
                    replace(each, id=f"relayed-{next(self.names)}", tenant=tenant),
                    More(parent_id="elsewhere", root_id="first"),
                ),
                max(1, self.view.now_ms - ago_ms),
            )
            for position, each in enumerate(creates)
        ]
        if not lacking:
            sent += new
        again = sent[-repeated - len(new) : -len(new)] if repeated and not lacking else []
        relays = (*again, *new)
        self.ask(TakeRelays(origin=origin, after=last + lacking, relays=relays))

    @precondition(lambda self: any(self.sent.values()))
    @rule(origin=st.sampled_from(ORIGINS), index=indexes, most=st.integers(1, 3))
    def take_relays_again(self, origin: int, index: int, most: int) -> None:
        """Take relays that were taken before; their tasks may have been deleted since."""
        sent = self.sent[origin]
        start = index % (len(sent) + 1)
        relays = tuple(sent[start : start + most])
        self.ask(TakeRelays(origin=origin, after=0, relays=relays))
