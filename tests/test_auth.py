"""Who may ask, first as a decision over headers, then over real sockets."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from scalescope.link import Link
from scalescope.settings import read_settings
from scalescope.wire import Record
from scalescope_server.auth import COOKIE, authorized, check, session_of
from scalescope_server.errors import ForbiddenError, InvalidError, ServerError, UnauthorizedError
from scalescope_server.settings import Settings
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.serving import Served, hello

TOKEN = "correct-horse-battery-staple"


def scope(
    headers: dict[str, str], *, kind: str = "http", method: str = "GET", path: str = "/api/runs", root_path: str = ""
) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "method": method, "path": path, "root_path": root_path, "headers": raw}


def outcome(given: dict[str, Any], settings: Settings) -> type[ServerError] | None:
    try:
        check(given, settings)
    except ServerError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8765", None),
        ("LOCALHOST", None),
        ("127.0.0.1:1", None),
        ("[::1]:8765", None),
        ("evil.example", ForbiddenError),
        ("localhost.evil.example:8765", ForbiddenError),
        ("127.0.0.1.evil.example", ForbiddenError),
        ("192.168.1.7:8765", ForbiddenError),
        ("localhost:8765, evil.example", InvalidError),
        ("user@localhost", InvalidError),
        ("", InvalidError),
    ],
)
def test_only_our_own_names_are_answered(host: str, expected: type[ServerError] | None) -> None:
    assert outcome(scope({"host": host}), Settings()) is expected
    assert outcome(scope({"host": host}, kind="websocket"), Settings()) is expected


def test_a_request_without_a_host_is_refused() -> None:
    assert outcome(scope({}), Settings()) is InvalidError


def test_a_name_of_ours_can_be_added() -> None:
    settings = Settings(allow_hosts=("scope.lab", "gpu-box:9000"))
    assert outcome(scope({"host": "scope.lab"}), settings) is None
    assert outcome(scope({"host": "gpu-box:8765"}), settings) is None
    assert outcome(scope({"host": "other.lab"}), settings) is ForbiddenError


def test_a_server_on_all_addresses_answers_to_addresses_and_not_to_foreign_names() -> None:
    settings = Settings(host="0.0.0.0", token=TOKEN)
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert outcome(scope({"host": "10.1.2.3:8765", **bearer}), settings) is None
    assert outcome(scope({"host": "[fe80::1]:8765", **bearer}), settings) is None
    assert outcome(scope({"host": "rebound.example:8765", **bearer}), settings) is ForbiddenError


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"origin": "http://localhost:8765"}, None),
        ({"origin": "http://localhost:8765", "sec-fetch-site": "same-origin"}, None),
        ({"origin": "http://localhost:3000"}, ForbiddenError),
        ({"origin": "http://127.0.0.1:8765"}, ForbiddenError),
        ({"origin": "https://evil.example"}, ForbiddenError),
        ({"origin": "null"}, ForbiddenError),
        ({"origin": "file://"}, ForbiddenError),
        ({"origin": "http://localhost:8765.evil.example"}, ForbiddenError),
        ({"origin": "http://localhost:8765", "sec-fetch-site": "cross-site"}, ForbiddenError),
        ({"sec-fetch-site": "cross-site"}, ForbiddenError),
        ({"sec-fetch-site": "same-site"}, ForbiddenError),
        ({"sec-fetch-site": "none"}, None),
    ],
)
def test_only_our_own_pages_may_write_or_open_a_socket(
    headers: dict[str, str], expected: type[ServerError] | None
) -> None:
    given = {"host": "localhost:8765", **headers}
    assert outcome(scope(given, method="POST"), Settings()) is expected
    assert outcome(scope(given, method="DELETE"), Settings()) is expected
    assert outcome(scope(given, kind="websocket"), Settings()) is expected


def test_another_origin_may_read_what_browsers_then_keep_from_it() -> None:
    assert outcome(scope({"host": "localhost", "origin": "https://evil.example"}), Settings()) is None


def test_an_origin_behind_a_proxy_is_ours_whatever_the_scheme() -> None:
    settings = Settings(allow_hosts=("scope.example",))
    own = {"host": "scope.example", "origin": "https://scope.example"}
    assert outcome(scope(own, method="PATCH"), settings) is None
    assert outcome(scope(own | {"origin": "https://scope.example:444"}, method="PATCH"), settings) is ForbiddenError


def test_an_origin_that_is_allowed_by_name_may_write() -> None:
    settings = Settings(allow_origins=("https://notes.example",))
    given = {"host": "localhost", "origin": "https://notes.example", "sec-fetch-site": "cross-site"}
    assert outcome(scope(given, method="POST"), settings) is None


@pytest.mark.parametrize("path", ["/api/runs", "/", "/runs/x", "/metrics", "/openapi.json", "/api/live"])
def test_with_a_token_nothing_is_read_without_it(path: str) -> None:
    settings = Settings(token=TOKEN)
    assert outcome(scope({"host": "localhost"}, path=path), settings) is UnauthorizedError
    bearer = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
    assert outcome(scope(bearer, path=path), settings) is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/login"])
def test_health_and_login_are_open(path: str) -> None:
    assert outcome(scope({"host": "localhost"}, path=path), Settings(token=TOKEN)) is None
    assert outcome(scope({"host": "localhost"}, path=f"/x{path}", root_path="/x"), Settings(token=TOKEN)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": f"other={session_of(TOKEN)}"},
        {"authorization": "Bearer \xff"},
    ],
)
def test_what_is_not_the_token_does_not_pass(headers: dict[str, str]) -> None:
    assert not authorized(headers, TOKEN)


def test_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(
    serve: Callable[..., AbstractContextManager[Served]],
) -> None:
    with serve(token=TOKEN, root_path="/scope") as served:
        answer = served.get(f"/login?token={TOKEN}")
        cookie = answer.headers["set-cookie"]
        assert (answer.status, answer.headers["location"]) == (303, "/scope/")
        assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", "Path=/scope"))
        assert TOKEN not in cookie
        assert served.get("/api/runs", cookie=cookie.partition(";")[0]).status == 200
        assert served.get("/login?token=wrong").status == 401
        assert served.get("/api/runs").json()["error"]["code"] == "token"
        assert served.get("/healthz").status == 200


class Silent:
    """A recorder that has nothing."""

    dropped = 0

    def drain(self) -> list[Record]:
        return []

    def progress(self) -> tuple[int | None, float | None]:
        return None, None


def test_a_trainer_without_the_token_is_refused_before_the_handshake_and_told_what_to_do(
    serve: Callable[..., AbstractContextManager[Served]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(token=TOKEN) as served:
        logging.getLogger("uvicorn.error").addHandler(caplog.handler)
        with pytest.raises(InvalidStatus) as caught, served.trainer():
            pass
        assert caught.value.response.status_code == 401
        assert json.loads(caught.value.response.body or b"")["error"]["code"] == "token"
        settings = read_settings({"SCALESCOPE_SPOOL": str(tmp_path)}, url=served.url, token="wrong")
        link = Link(hello(), settings, Silent())
        link.start()
        assert not link.close("finished", "")
        with served.trainer(hello(), Authorization=f"Bearer {TOKEN}"):
            pass
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    told = next(message for message in caplog.messages if "SCALESCOPE_TOKEN" in message)
    assert "it answered HTTP 401: this server asks for its token: set SCALESCOPE_TOKEN to it" in told


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/plain"),
        ("/runs/x/layers", "text/plain"),
        ("/api/runs", "application/json"),
        ("/metrics", "application/json"),
        ("/openapi.json", "application/json"),
        ("/static/1/style.css", "application/json"),
        ("/nothing", "application/json"),
    ],
)
def test_only_on_a_pages_place_is_the_refusal_a_plain_sentence(
    serve: Callable[..., AbstractContextManager[Served]], path: str, kind: str
) -> None:
    with serve(token=TOKEN) as served:
        answer = served.get(path)
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (401, kind)
    assert "this server asks for its token" in answer.body.decode()


@pytest.mark.parametrize("path", ["/api/ingest", "/api/live"])
@pytest.mark.parametrize(
    ("name", "headers"), [("127.0.0.1", {"Origin": "https://evil.example"}), ("rebound.example", {})]
)
def test_a_page_elsewhere_cannot_open_a_socket(shared: Served, path: str, name: str, headers: dict[str, str]) -> None:
    with (
        socket.create_connection(("127.0.0.1", shared.port)) as reached,
        pytest.raises(InvalidStatus) as caught,
        connect(f"ws://{name}:{shared.port}{path}", sock=reached, additional_headers=headers),
    ):
        pass
    assert caught.value.response.status_code == 403


def test_a_page_elsewhere_cannot_write_and_a_foreign_name_is_not_answered(shared: Served) -> None:
    elsewhere = shared.call("PATCH", "/api/runs/x", body={}, headers={"Origin": "https://evil.example"})
    assert (elsewhere.status, elsewhere.json()["error"]["field"]) == (403, "origin")
    rebound = shared.get("/healthz", Host="rebound.example")
    assert (rebound.status, rebound.json()["error"]["field"]) == (403, "host")


def test_a_page_with_the_cookie_hears_news_and_one_without_does_not(
    serve: Callable[..., AbstractContextManager[Served]],
) -> None:
    with serve(token=TOKEN) as served:
        with served.page(Cookie=f"{COOKIE}={session_of(TOKEN)}", Origin=served.url):
            pass
        with pytest.raises(InvalidStatus), served.page(Origin=served.url):
            pass
