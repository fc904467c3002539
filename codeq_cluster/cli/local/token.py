"""Command `token`: create a token signed with HS256, for development and first steps.

A node accepts it if it is configured with a provider `hs256` and the same secret.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import jwt

from codeq_cluster.auth.identity import WORKER_SCOPES, Role
from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.output import document, note
from codeq_cluster.settings import environment
from codeq_cluster.settings.auth import HS_SECRET_BYTES_MIN

_TTL_SECONDS_MAX = 366 * 86400
_VARIABLE = "CODEQ_TOKEN_SECRET"


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "token", help="make an HS256 token for development", description=__doc__
    )
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help=f"file of the secret, or - for stdin; default: the variable {_VARIABLE}",
    )
    parser.add_argument("--subject", required=True, metavar="NAME", help="who it speaks for")
    parser.add_argument("--tenant", metavar="NAME", help="claim tid")
    parser.add_argument(
        "--as",
        dest="roles",
        action="append",
        default=[],
        choices=("producer", "worker", "admin", "operator", "viewer"),
        help="a worker gets a worker's scopes and event types, an admin of the tenant codeq:admin, "
        "an operator of the cluster codeq:operator, a viewer of the tenant's page codeq:view; "
        "may be repeated; default: producer",
    )
    parser.add_argument("--scope", action="append", default=[], metavar="NAME", help="one more")
    parser.add_argument(
        "--command",
        "--event",
        dest="commands",
        action="append",
        default=[],
        metavar="NAME",
        help="a command of its claim eventTypes; default of a worker: *",
    )
    parser.add_argument("--ttl", type=int, default=3600, metavar="SECONDS", help="default: 3600")
    parser.add_argument("--issuer", metavar="NAME", help="claim iss")
    parser.add_argument("--audience", metavar="NAME", help="claim aud")
    parser.add_argument(
        "--claim", action="append", default=[], metavar="NAME=VALUE", help="any other; JSON or text"
    )
    parser.add_argument("--json", action="store_true", help="print the token and its claims")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    claims = _claims(options, now_s=int(time.time()))
    token = jwt.encode(claims, _secret(options.secret_file), algorithm="HS256")
    if options.json:
        document({"token": token, "claims": claims}, compact=True)
    else:
        print(token)
        note(f"claims: {json.dumps(claims)}")
    return Exit.OK


def _claims(options: argparse.Namespace, *, now_s: int) -> dict[str, object]:
    if not 1 <= options.ttl <= _TTL_SECONDS_MAX:
        raise UsageRefused(f"--ttl {options.ttl}: must be 1 to {_TTL_SECONDS_MAX} seconds")
    if "producer" in options.roles and not {"worker", "admin"} & {*options.roles}:
        other = next((each for each in options.roles if each != "producer"), "")
        if other:
            raise UsageRefused(
                f"--as producer --as {other}: such a token is the {other}'s alone, who has no "
                "tenant's tasks; make one token each, or an admin's too"
            )
    worker = "worker" in options.roles
    scopes = {*options.scope, *(WORKER_SCOPES if worker else ())}
    scopes |= {role for role in Role if role.name.lower() in options.roles}
    known: dict[str, object] = {
        "sub": options.subject,
        "iat": now_s,
        "exp": now_s + options.ttl,
        "tid": options.tenant,
        "iss": options.issuer,
        "aud": options.audience,
        "scope": " ".join(sorted(scopes)) or None,
        "eventTypes": options.commands or (["*"] if worker else None),
    }
    claims = {name: value for name, value in known.items() if value is not None}
    for pair in options.claim:
        name, equals, value = str(pair).partition("=")
        if not equals or not name:
            raise UsageRefused(f"--claim {pair}: must be NAME=VALUE")
        try:
            claims[name] = json.loads(value)
        except ValueError:
            claims[name] = value
    return claims


def _secret(file: str | None) -> str:
    """Read the secret, but never from a flag: every user of the machine could see it there."""
    try:
        if file == "-":
            secret = sys.stdin.read().strip()
        elif file is not None:
            secret = Path(file).read_text().strip()
        else:
            secret = environment().get(_VARIABLE, "")
    except (OSError, UnicodeError) as error:
        raise UsageRefused(f"--secret-file {file}: {error}; must be a file of text") from error
    if not secret:
        raise UsageRefused(f"no secret: name its file with --secret-file, or set {_VARIABLE}")
    if len(secret.encode()) < HS_SECRET_BYTES_MIN:
        raise UsageRefused(
            f"the secret is too short: a node takes {HS_SECRET_BYTES_MIN} bytes or more"
        )
    return secret
