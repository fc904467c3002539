"""Sessions of the page: the tokens that get one, its rights, and its end."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
import pytest_asyncio

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import (
    AuthProviderSettings,
    AuthSettings,
    LimitSettings,
    NodeSettings,
    ProxySettings,
)
from codeq_cluster.ui.sessions import SESSION_S_MAX, TOKEN_CHARS_MAX
from tests.integration.http.client import Client, eventually, serving, single
from tests.integration.http.page import (
    ROLES,
    Session,
    cookie_of,
    logged_in,
    try_to_log_in,
    with_roles,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a secret of thirty-two bytes, at least so"
FOREIGN = {"Sec_Fetch_Site": "cross-site"}


def settings_in(directory: Path) -> NodeSettings:
    """Return the settings of a node with a token for every role."""
    return with_roles(single(directory, LimitSettings()))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node for the tests that lock nobody out."""
    async with serving(settings_in(tmp_path_factory.mktemp("page"))) as client:
        yield client


@pytest.mark.parametrize("role", ROLES)
async def test_a_token_with_a_role_begins_a_session(client: Client, role: str) -> None:
    """The session has exactly the rights of its token."""
    answer = await try_to_log_in(client, role)

    assert 200 == answer.status
    assert answer.json["roles"] == sorted(ROLES[role])
    assert (f"a {role}", "acme") == (answer.json["subject"], answer.json["tenant"])
    assert f"a {role}" == await _subject(await logged_in(client, role))


async def test_a_session_is_kept_where_no_script_and_no_other_site_can_use_it(
    client: Client,
) -> None:
    """The cookie is sent only to the page's own paths, and its content is encrypted."""
    answer = await try_to_log_in(client, "admin")
    cookie = answer.headers["set-cookie"]
    age = re.search(r"Max-Age=(\d+)", cookie)

    assert {"HttpOnly", "Path=/ui", "SameSite=Strict"} <= set(cookie.split("; "))
    assert age is not None
    assert SESSION_S_MAX - 60 <= int(age[1]) <= SESSION_S_MAX
    assert "admin" not in cookie


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        ("producer", 403, "codeq:view, codeq:admin, codeq:operator"),
        ("worker", 403, "codeq:view, codeq:admin, codeq:operator"),
        ("unheard-of", 401, "invalid token"),
        ("two words", 401, "invalid Authorization format"),
        ("", 400, "a token is needed"),
        (" \n", 400, "a token is needed"),
        ("x" * (TOKEN_CHARS_MAX + 1), 400, "which no cookie can hold"),
        (7, 400, "invalid body"),
    ],
)
async def test_a_token_without_a_role_of_the_page_gets_no_session(
    client: Client, token: object, status: int, said: str
) -> None:
    """The refusal names the missing scope."""
    answer = await try_to_log_in(client, token)

    assert status == answer.status
    assert said in str(answer.error)
    assert "set-cookie" not in answer.headers


async def test_a_pasted_token_may_have_spaces_around_it(client: Client) -> None:
    """Terminals copy line ends too."""
    assert 200 == (await try_to_log_in(client, " viewer\n")).status


async def test_a_write_needs_the_sessions_own_token(client: Client) -> None:
    """A write without it, or with the token of another user or session, is refused."""
    mine, other = await logged_in(client, "admin"), await logged_in(client, "admin")
    path = "/queues/forged/pause"
    answers = [
        await mine.write("POST", path, X_CSRF_Token=forged)
        for forged in ("", "x", other.csrf, mine.csrf[:-1], "\xfc")
    ]

    assert [(403, "csrf")] * 5 == [(each.status, each.json["code"]) for each in answers]
    assert not [row for row in await _queues(mine) if row["command"] == "forged"]
    assert 200 == (await mine.write("POST", path)).status
    assert 200 == (await mine.write("POST", "/queues/forged/resume")).status


async def test_requests_that_another_site_triggers_are_refused(client: Client) -> None:
    """Reads and the log-in are refused as well, whatever cookie is sent."""
    session = await logged_in(client, "admin")
    read = await session.get("/now?view=queues", **FOREIGN)
    write = await session.write("POST", "/queues/q/pause", **FOREIGN)
    login = await try_to_log_in(client, "admin", **FOREIGN)
    form = await try_to_log_in(client, "admin", Content_Type="text/plain")

    assert [403, 403, 403, 415] == [each.status for each in (read, write, login, form)]
    assert 200 == (await session.get("/now?view=queues", Sec_Fetch_Site="same-origin")).status


async def test_a_session_is_nothing_to_the_api_and_a_token_nothing_to_the_page(
    client: Client,
) -> None:
    """A cookie that a browser sends on its own has no effect beyond the page's paths."""
    session = await logged_in(client, "admin")
    api = await client.get("admin/queues", token="", Cookie=session.cookie)
    page = await client.get("/ui/api/now?view=queues", token="admin")

    assert (401, 401) == (api.status, page.status)


async def test_an_altered_cookie_is_no_session(client: Client) -> None:
    """A cookie with somebody else's text is refused too."""
    session = await logged_in(client, "admin")
    name, _, value = session.cookie.partition("=")
    for forged in (value[:-8], "AAAA" + value[4:], "", "admin"):
        session.cookie = f"{name}={forged}"

        assert 401 == (await session.get("/now?view=queues")).status
        assert b"null" == (await session.get("/session")).body


async def test_any_node_of_the_cluster_takes_a_session(client: Client, tmp_path: Path) -> None:
    """Cookies are sealed with the cluster's secret; a node with another secret refuses them."""
    session = await logged_in(client, "admin")
    settings = settings_in(tmp_path)
    async with serving(replace(settings, data_dir=tmp_path / "same")) as same:
        taken = await Session(same, session.cookie, session.csrf).write("POST", "/queues/q/pause")
    other_secret = replace(settings, data_dir=tmp_path / "other", cluster_secret="another" * 5)
    async with serving(other_secret) as other:
        refused = await Session(other, session.cookie, session.csrf).get("/now?view=queues")

    assert (200, 401) == (taken.status, refused.status)


async def test_logging_out_has_the_browser_forget(client: Client) -> None:
    """Logging out is a write like any other."""
    session = await logged_in(client, "viewer")
    forged = await session.write("DELETE", "/session", X_CSRF_Token="")
    answer = await session.write("DELETE", "/session")

    assert 403 == forged.status
    assert 200 == answer.status
    assert re.match(r'\w+=(""|);.*Max-Age=0', answer.headers["set-cookie"])


async def test_over_https_no_other_host_can_set_the_cookie(tmp_path: Path) -> None:
    """A trusted proxy ends TLS here; a browser takes `__Host-` cookies only from this very host."""
    settings = replace(settings_in(tmp_path), proxies=ProxySettings(trusted=("127.0.0.1",)))
    https = {"X_Forwarded_Proto": "https"}
    async with serving(settings) as client:
        answer = await try_to_log_in(client, "admin", **https)
        plain = await try_to_log_in(client, "admin")
        session = Session(client, cookie_of(answer), str(answer.json["csrf"]))
        planted = Session(client, cookie_of(plain), str(plain.json["csrf"]))
        taken = await session.get("/now?view=queues", **https)
        refused = await planted.get("/now?view=queues", **https)
        api = await client.get("admin/queues", token="", Cookie=session.cookie)

    fields = set(answer.headers["set-cookie"].split("; "))
    assert session.cookie.startswith("__Host-codeq_session_")
    assert {"Path=/", "Secure", "HttpOnly", "SameSite=Strict"} <= fields
    assert "Domain" not in answer.headers["set-cookie"]
    assert (200, 401, 401) == (taken.status, refused.status, api.status)


async def test_a_cookie_planted_beside_a_session_gains_nothing(client: Client) -> None:
    """Another host of the domain can set one: nonsense is passed over, a second session is none."""
    mine, attackers = await logged_in(client, "admin"), await logged_in(client, "viewer")
    name, _, _ = mine.cookie.partition("=")
    beside = []
    for planted in (f"{name}=nonsense", attackers.cookie):
        for cookie in (f"{planted}; {mine.cookie}", f"{mine.cookie}; {planted}"):
            both = Session(client, cookie, mine.csrf)
            beside.append((await both.get("/now?view=queues")).status)

    assert [200, 200, 401, 401] == beside


async def test_a_node_of_named_hosts_answers_to_no_other_name(tmp_path: Path) -> None:
    """A site whose name leads to this machine makes the browser send that name."""
    settings = replace(settings_in(tmp_path), allowed_hosts=("localhost", "node"))
    async with serving(settings) as client:
        answers = [
            [
                (await client.get(path, token="admin", Host=host)).status
                for path in ("/ui/api/session", "admin/queues", "/healthz")
            ]
            for host in ("localhost:8080", "127.0.0.1:8080", "[::1]", "LocalHost")
        ]
        rebound = await client.get("/ui/api/session", token="", Host="evil.example:8080")
        whole = await client.post("tasks", {"command": "q", "payload": 1}, Host="evil.example")

    assert [[200, 200, 200]] * 4 == answers
    assert (421, "wrong-host") == (rebound.status, rebound.json["code"])
    assert 421 == whole.status


async def test_wrong_tokens_lock_nobody_out(tmp_path: Path) -> None:
    """Everybody behind one proxy has one address: others' wrong tokens must not matter to them."""
    async with serving(settings_in(tmp_path)) as client:
        wrong = [await try_to_log_in(client, f"guess{n}") for n in range(12)]
        right = await try_to_log_in(client, "admin")

    assert [401] * 10 + [429] * 2 == [each.status for each in wrong]
    assert 1 <= int(wrong[-1].headers["retry-after"]) <= 6
    assert 200 == right.status


async def test_behind_a_trusted_proxy_each_caller_has_its_own_limit(tmp_path: Path) -> None:
    """The right-most address is the proxy's word, the ones to its left are the caller's own."""
    settings = replace(settings_in(tmp_path), proxies=ProxySettings(trusted=("127.0.0.0/8",)))
    async with serving(settings) as client:

        async def guess(told: str) -> int:
            return (await try_to_log_in(client, "guess", X_Forwarded_For=told)).status

        one = [await guess(f"192.0.2.{n}, 203.0.113.5") for n in range(11)]
        other = await guess("203.0.113.6")

    assert [401] * 10 + [429] == one
    assert 401 == other


async def test_a_caller_without_a_trusted_proxy_cannot_choose_its_address(tmp_path: Path) -> None:
    """The header counts from a trusted peer alone."""
    settings = replace(settings_in(tmp_path), proxies=ProxySettings(trusted=("192.0.2.1",)))
    async with serving(settings) as client:
        tries = [
            (await try_to_log_in(client, "guess", X_Forwarded_For=f"203.0.113.{n}")).status
            for n in range(11)
        ]

    assert 429 == tries[-1]


async def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    """Every request checks the end, and the cookie has it too."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET)
    auth = AuthSettings(producer=(provider,), clock_skew_seconds=0)
    settings = replace(settings_in(tmp_path), auth=auth)
    expires_s = int(time.time()) + 4
    claims = {"sub": "eve", "tid": "acme", "scope": "codeq:admin", "exp": expires_s}
    node = Node(settings)
    await node.start()
    try:
        client = Client(node.port)
        answer = await try_to_log_in(client, jwt.encode(claims, SECRET, algorithm="HS256"))
        session = await logged_in(client, jwt.encode(claims, SECRET, algorithm="HS256"))
        before = await _subject(session)
        await eventually(lambda: _subject(session), lambda subject: subject is None)
        ended_s = time.time()
        write = await session.write("POST", "/queues/q/pause")
    finally:
        await node.stop()
    age = re.search(r"Max-Age=(\d+)", answer.headers["set-cookie"])

    assert age is not None
    assert int(age[1]) <= 4
    assert "eve" == before
    assert ended_s >= expires_s
    assert (401, "no-session") == (write.status, write.json["code"])


async def test_a_token_that_is_withdrawn_ends_its_session(tmp_path: Path) -> None:
    """A node that no longer knows the token refuses its cookie."""
    settings = settings_in(tmp_path)
    async with serving(settings) as client:
        session = await logged_in(client, "admin")
    producer = AuthProviderSettings(kind="static", tokens=settings.auth.producer[0].tokens[:1])
    without = replace(settings, auth=AuthSettings(producer=(producer,)))
    async with serving(without) as client:
        answer = await Session(client, session.cookie, session.csrf).get("/now?view=queues")

    assert 401 == answer.status


async def _subject(session: Session) -> str | None:
    answer = await session.get("/session")
    assert 200 == answer.status
    return None if answer.body == b"null" else str(answer.json["subject"])


async def _queues(session: Session) -> list[dict[str, object]]:
    shown = await session.view("queues")
    rows: list[dict[str, object]] = shown["view"]["queues"]
    return rows
