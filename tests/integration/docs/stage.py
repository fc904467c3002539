"""Stage: the tasks and other objects that requests of the HTTP reference need."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from codeq_cluster.testing.broker import LocalBroker
from docs.tools.examples import ARTIFACT, COMMAND
from tests.harness.http import fetch

BASE = "/v1/codeq"
# No server listens there, so a callback to it is a dead delivery after its only attempt.
NO_OWNER = "http://127.0.0.1:9/nobody"
PATIENCE_S = 60.0


@dataclass(slots=True)
class Stage:
    """Creates tasks and other objects; `set` holds the values for the shell's variables."""

    broker: LocalBroker
    set: dict[str, str] = field(default_factory=dict)

    def prepare(self, task: str) -> None:
        """Create a task in the state an example needs, and set `$TASK` to its id."""
        match task:
            case "":
                pass
            case "ready":
                self.set["TASK"] = self.created()
            case "leased":
                self.set["TASK"] = self.leased()
            case "done":
                self.set["TASK"] = self._done()
            case "dead":
                self.set["TASK"] = self._dead()
            case "with an artifact":
                self.set["TASK"], self.set["UPLOAD"] = self._with_artifact()
            case _:
                self._prepare_other(task)

    def _prepare_other(self, thing: str) -> None:
        """Make what an example needs beside tasks."""
        match thing:
            case "with a topic":
                self.send("PUT", f"/admin/topics/{COMMAND}", {"maxAttempts": 3})
            case "with a limit":
                self.send("PUT", f"/admin/limits/{COMMAND}", {"maxRunning": 20})
            case "with a schedule":
                plan = {"cron": "@daily", "task": {"command": "report", "payload": {}}}
                self.send("PUT", f"/admin/schedules/{COMMAND}", plan)
            case "with a group":
                self.set["GROUP"] = self.send("POST", "/groups", {})["id"]
            case "with a bulk job":
                said = {"id": "stop-b", "select": {"command": "b"}, "action": "cancel"}
                self.set["BULK"] = self.send("POST", "/admin/bulk", said)["id"]
            case _:
                raise AssertionError(thing)

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Send one request and return its answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = fetch(
            method,
            self.broker.url,
            BASE + path,
            token=self.broker.token,
            body=None if body is None else content,
        )
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    def created(self, **fields: object) -> str:
        """Return a ready task of the highest priority."""
        task = {"command": COMMAND, "payload": {"image": "cat.png"}, "priority": 9, **fields}
        return str(self.send("POST", "/tasks", task)["id"])

    def leased(self, *, lease_s: int = 300, **fields: object) -> str:
        """Return a task that was claimed."""
        created = self.created(**fields)
        self.claimed(created, leaseSeconds=lease_s)
        return created

    def claimed(self, task: str, **asked: object) -> None:
        """Claim until this task is delivered; the tasks before it stay leased too."""
        taken = {"id": ""}
        while taken["id"] != task:
            taken = self.send("POST", "/tasks/claim", {"commands": [COMMAND], **asked})

    def _done(self, **result: object) -> str:
        task = self.leased()
        said = {"status": "COMPLETED", "result": {"width": 640}, **result}
        self.send("POST", f"/tasks/{task}/result", said)
        return task

    def _dead(self, **fields: object) -> str:
        task = self.leased(maxAttempts=1, **fields)
        self.send("POST", f"/tasks/{task}/abandon")
        return task

    def _with_artifact(self) -> tuple[str, str]:
        """Return a task and the id of its upload."""
        task = self.leased()
        stored = self.send("PUT", f"/tasks/{task}/artifacts/{ARTIFACT}", b"a picture")
        said = {"status": "COMPLETED", "result": {}, "artifacts": [stored]}
        self.send("POST", f"/tasks/{task}/result", said)
        return task, stored["url"].split("/")[-2]

    def make_the_rest(self) -> None:
        """Create a subscription, a backup and a dead delivery."""
        subscription = {"callbackUrl": NO_OWNER, "eventTypes": [COMMAND]}
        made = self.send("POST", "/workers/subscriptions", subscription)
        self.set["SUBSCRIPTION"] = made["subscriptionId"]
        self.set["BACKUP"] = self.send("POST", "/admin/backup")["id"]
        backup = f"/admin/backup/{self.set['BACKUP']}"
        self._until(lambda: self.send("GET", backup)["status"] == "DONE")
        self.set["DELIVERY"] = f"{self.undelivered(NO_OWNER)}.1"

    def undelivered(self, url: str) -> str:
        """Return a task whose callback failed."""
        task = self._dead(webhook=url)
        self.broker.advance(seconds=1)
        self._until(lambda: self.send("GET", "/admin/deliveries?status=dead")["deliveries"])
        return task

    def _until(self, holds: Callable[[], object]) -> None:
        """Wait until a condition holds, with time for a busy machine."""
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until_s
            self.broker.settle()
