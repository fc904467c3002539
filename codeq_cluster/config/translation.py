"""Translation: translates codeQ's keys, with remarks on those that mean little or nothing here.

Some configurations of codeQ cannot be followed and are refused: those whose data is elsewhere, and
those whose nodes each hold a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codeq_cluster.config.reference import FOREIGN
from codeq_cluster.config.sources import Given, refuse
from codeq_cluster.settings import RaftSettings
from codeq_cluster.settings.kinds import FLAG, URL, whole

_STORE = "pebble"  # Of codeQ's stores, the only one local to a node.
_WORKER_AUDIENCE = "codeq-worker"
_WORKER_ISSUER, _PRODUCER_ISSUER = "worker", "identity"
_MS = whole(0, 2**53)


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on a given value that is not used as it is.

    Attributes:
        name: The key.
        source: Where it was given.
        says: One phrase, for the log.
    """

    name: str
    source: str
    says: str


def translated(given: Mapping[str, Given]) -> tuple[dict[str, Given], tuple[Remark, ...]]:
    """Return the configuration with codeQ's keys translated.

    Args:
        given: The values of all sources together, by key name.

    Returns:
        The same with codeQ's keys replaced by their translation; remarks in the order of the table.

    Raises:
        ConfigInvalid: It is a configuration of codeQ that cannot be followed.
    """
    translation = _Translation(given)
    translation.refuse_other_stores()
    translation.judge_replication()
    translation.read_heartbeats()
    translation.find_issuers()
    translation.take_artifacts()
    translation.take_tracing()
    for foreign in FOREIGN.values():
        translation.ignore(foreign.name, foreign.reason)
    return translation.given, tuple(translation.remarks)


class _Translation:
    """One configuration being translated."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self.given = dict(given)
        self.remarks: list[Remark] = []

    def ignore(self, name: str, reason: str) -> None:
        """Remove a key and add a remark with the reason, if it was given."""
        value = self.given.pop(name, None)
        if value is not None:
            self.remarks.append(Remark(name, value.source, f"{reason}; ignored"))

    def refuse_other_stores(self) -> None:
        """Refuse data outside this node's own store."""
        provider = self.given.pop("persistenceProvider", None)
        if provider is not None and str(provider.raw).strip().lower() != _STORE:
            raise refuse(
                "persistenceProvider",
                provider,
                f"{_STORE} or empty, since a node keeps its data itself: write "
                f"persistenceProvider: {_STORE} and, in persistenceConfig, path: DIRECTORY",
            )
        sharding = self.given.pop("sharding", None)
        if sharding is not None and isinstance(sharding.raw, dict) and sharding.raw.get("enabled"):
            raise refuse(
                "sharding.enabled",
                Given(sharding.raw["enabled"], sharding.source),
                "false, since there are no Redis servers to spread over: write, in "
                "persistenceConfig, numShards: NUMBER",
            )

    def judge_replication(self) -> None:
        """Refuse nodes that would not replicate."""
        if self._flag("cluster.enabled"):
            raise refuse(
                "cluster.enabled",
                self.given["cluster.enabled"],
                "false, since nodes replicate here and none has a part of its own: write "
                "raft.selfId and raft.peers",
            )
        replicates = self._flag("raft.enabled")
        if replicates is False and "raft.peers" in self.given:
            raise refuse(
                "raft.enabled",
                self.given["raft.enabled"],
                "true, or no raft.peers: nodes that know each other replicate",
            )
        if replicates is False:
            self.ignore("raft.enabled", "every node replicates, without `raft.peers` with itself")
        self._drop("cluster.enabled", "raft.enabled")

    def read_heartbeats(self) -> None:
        """Ignore `heartbeatMS` if it is codeQ's follower timeout, not a pause between heartbeats.

        The value tells them apart: codeQ allows up to `electionMS`, this broker a third of it.
        """
        heartbeat = self._number("raft.heartbeatMS", 0)
        election = self._number("raft.electionMS", RaftSettings().election_ms)
        if heartbeat <= election < 3 * heartbeat:
            self.ignore(
                "raft.heartbeatMS",
                "more than a third of `raft.electionMS`, it is codeQ's silence before an election, "
                "which `raft.electionMS` is here",
            )

    def find_issuers(self) -> None:
        """Complete the issuers' keys as codeQ does, unless a provider was chosen."""
        for of, issuer in (("producer", _PRODUCER_ISSUER), ("worker", _WORKER_ISSUER)):
            url, others = f"{issuer}JwksUrl", (f"{issuer}Issuer", f"{issuer}Audience")
            forms = (f"auth.{of}", f"{of}AuthConfig", f"{of}AuthProvider")
            chosen = next((name for name in forms if name in self.given), None)
            if chosen is None and issuer == _PRODUCER_ISSUER:
                self._derive_issuer()
            if chosen is None and url in self.given and issuer == _WORKER_ISSUER:
                self.given.setdefault("workerAudience", Given(_WORKER_AUDIENCE, "default"))
            if chosen is None and url in self.given:
                continue
            reason = f"`{chosen}` decides" if chosen else f"there is no `{url}`"
            # Two forms of this broker's own contradict each other; codeQ lets the provider decide.
            unused = others if chosen == f"auth.{of}" else (url, *others)
            for name in unused:
                self.ignore(name, reason)
            if issuer == _PRODUCER_ISSUER:
                self.ignore("identityServiceUrl", reason)

    def _derive_issuer(self) -> None:
        service = self.given.get("identityServiceUrl")
        if service is None:
            return
        if "identityJwksUrl" in self.given and "identityIssuer" in self.given:
            self.ignore("identityServiceUrl", "`identityJwksUrl` and `identityIssuer` decide")
            return
        try:
            base = str(URL.parse(service.raw))
        except ValueError as error:
            raise refuse("identityServiceUrl", service, URL.allowed) from error
        source = _source(service, "identityServiceUrl")
        self.given.setdefault("identityJwksUrl", Given(f"{base}/v1/.well-known/jwks.json", source))
        self.given.setdefault("identityIssuer", Given(base, source))
        self._drop("identityServiceUrl")

    def take_artifacts(self) -> None:
        """Use codeQ's directory of artifacts, unless this broker's own keys name a place."""
        place = self.given.get("localArtifactsDir")
        if place is None:
            return
        if "artifacts.provider" in self.given or "artifacts.directory" in self.given:
            self.ignore("localArtifactsDir", "`artifacts.provider` decides")
            return
        self._rename("localArtifactsDir", "artifacts.directory")
        self.given["artifacts.provider"] = Given("local", place.source)
        if "raft.peers" in self.given:
            says = "taken as `artifacts.directory`, which every node must reach"
            self.remarks.append(Remark("localArtifactsDir", place.source, says))

    def take_tracing(self) -> None:
        """Use codeQ's tracing keys; its collector speaks OTLP over gRPC."""
        self._rename("tracingServiceName", "tracing.serviceName")
        self._rename("tracingSampleRatio", "tracing.sampleRatio")
        enabled = self._flag("tracingEnabled")
        if enabled is False:
            self.ignore("tracing.otlpEndpoint", "`tracingEnabled` is false")
        self._take_collector(enabled=bool(enabled))
        if enabled and "tracing.otlpEndpoint" not in self.given:
            reason = "no spans are made without `tracing.otlpEndpoint`"
            self.ignore("tracingEnabled", reason)
        self._drop("tracingEnabled")

    def _take_collector(self, *, enabled: bool) -> None:
        place = self.given.get("tracingOtlpEndpoint")
        if place is not None and enabled and "tracing.otlpEndpoint" not in self.given:
            # codeQ accepts a URL too, and uses only its address.
            address = str(place.raw).rpartition("://")[2].partition("/")[0]
            scheme = "http" if self._flag("tracingOtlpInsecure") else "https"
            source = _source(place, "tracingOtlpEndpoint")
            self.given["tracing.otlpEndpoint"] = Given(f"{scheme}://{address}", source)
            self.given.setdefault("tracing.otlpProtocol", Given("grpc", source))
            self._drop("tracingOtlpEndpoint", "tracingOtlpInsecure")
        elif not enabled:
            for name in ("tracingOtlpEndpoint", "tracingOtlpInsecure"):
                self.ignore(name, "no spans are made without `tracingEnabled`")
        for name in ("tracingOtlpEndpoint", "tracingOtlpInsecure"):
            self.ignore(name, "`tracing.otlpEndpoint` decides")

    def _rename(self, name: str, ours: str) -> None:
        """Use a key of codeQ under this broker's name, which wins if both are given."""
        if ours in self.given:
            self.ignore(name, f"`{ours}` decides")
        elif name in self.given:
            value = self.given.pop(name)
            self.given[ours] = Given(value.raw, _source(value, name))

    def _drop(self, *names: str) -> None:
        """Remove keys that state what is always so here."""
        for name in names:
            self.given.pop(name, None)

    def _flag(self, name: str) -> bool | None:
        value = self.given.get(name)
        if value is None:
            return None
        try:
            return bool(FLAG.parse(value.raw))
        except ValueError as error:
            raise refuse(name, value, FLAG.allowed) from error

    def _number(self, name: str, default: int) -> int:
        """Return a number, or the default for a value that the key's own check refuses later."""
        try:
            value = _MS.parse(self.given[name].raw)
        except (KeyError, ValueError):
            return default
        assert isinstance(value, int)
        return value


def _source(value: Given, name: str) -> str:
    """Return the source of a value that has another key from here on."""
    # A variable contains the name, a file does not.
    named = FOREIGN[name].env in value.source.split()
    return value.source if named else f"{value.source}, {name}"
