"""The proxy that stands between a trainer and its server in other tests."""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.proxy import between
from tests.serving import serving
from tests.small_server import free_port


def test_what_passes_is_delayed_each_way_and_counted(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/t.db") as served, between(served.url, delay_s=0.1) as proxy:
        began = time.monotonic()
        connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == http.client.OK
        assert time.monotonic() - began >= 0.2
        assert proxy.sent_bytes > len("GET /healthz")
        assert proxy.received_bytes > len(body)


def test_a_server_that_is_not_there_is_not_there_behind_it_either() -> None:
    with between(f"http://127.0.0.1:{free_port()}") as proxy:
        connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
        connection.request("GET", "/healthz")
        with pytest.raises(ConnectionError):
            connection.getresponse()
        connection.close()


def test_a_connection_that_is_still_open_does_not_hold_up_its_end(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/t.db") as served:
        with between(served.url) as proxy:
            connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            began = time.monotonic()
        assert time.monotonic() - began < 5.0
        connection.close()
