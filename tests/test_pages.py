"""The pages' shells and files: escaped, kept as long as they are good, and fit for the content policy."""

from __future__ import annotations

import gzip
import re
from importlib import resources

import pytest
from scalescope_server.pages import FOR_EVER, PLOTLY, frontend_version, plotly_styles, plotly_version

from tests.serving import Served

PAGES = ["/", "/runs/run-1", "/runs/run-1/layers", "/runs/run-1/layers/block.weight"]
HOSTILE = "%3Cimg%20src=x%20onerror=%22alert(1)%22%3E"


@pytest.mark.parametrize("path", PAGES)
def test_every_inline_element_of_a_page_carries_the_nonce_of_its_policy(shared: Served, path: str) -> None:
    answer = shared.get(path)
    text = answer.body.decode()
    nonce = re.search(r"style-src-elem 'self' 'nonce-([\w-]+)'", answer.headers["content-security-policy"])
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert nonce is not None
    assert re.findall(r"<style[^>]*nonce=\"([\w-]+)\"", text) == [nonce[1]] * len(plotly_styles())
    assert not re.search(r"<script(?![^>]* src=)", text)
    assert not re.search(r"\son\w+=|javascript:", text)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_never_kept_since_its_nonce_is_good_for_once(shared: Served, path: str) -> None:
    first, second = shared.get(path), shared.get(path)
    assert first.headers["cache-control"] == "no-store"
    assert first.headers["content-security-policy"] != second.headers["content-security-policy"]


@pytest.mark.parametrize("path", PAGES)
def test_every_file_that_a_page_names_is_there(shared: Served, path: str) -> None:
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', shared.get(path).body.decode())
    assert len(named) >= 4
    for address in set(named):
        assert shared.get(address).status == 200, address


def test_every_module_that_a_module_imports_is_there(shared: Served) -> None:
    folder = resources.files("scalescope_server.frontend")
    scripts = [item for item in folder.iterdir() if item.name.endswith(".js")]
    assert len(scripts) > 10
    for script in scripts:
        for name in re.findall(r'^import .*? from "\./([\w.]+)";', script.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            assert shared.get(f"/static/{frontend_version()}/{name}").status == 200, f"{script.name}: {name}"


def test_names_in_an_address_are_escaped(shared: Served) -> None:
    text = shared.get(f"/runs/{HOSTILE}/layers/{HOSTILE}").body.decode()
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text


def test_a_name_with_slashes_is_one_layer(shared: Served) -> None:
    assert 'data-parameter="a/b/c"' in shared.get("/runs/run-1/layers/a/b/c").body.decode()


@pytest.mark.parametrize(
    ("name", "kind"), [("style.css", "text/css"), ("plot.js", "text/javascript"), ("icon.svg", "image/svg+xml")]
)
def test_a_file_of_this_version_may_be_kept_for_ever(shared: Served, name: str, kind: str) -> None:
    answer = shared.get(f"/static/{frontend_version()}/{name}")
    assert answer.headers["content-type"].split(";")[0] == kind
    assert answer.headers["cache-control"] == FOR_EVER
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_file_of_another_version_is_todays_and_must_be_asked_for_again(shared: Served) -> None:
    answer = shared.get("/static/old/style.css")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-cache"


def test_a_file_that_is_known_is_not_sent_again(shared: Served) -> None:
    tag = shared.get("/static/old/style.css").headers["etag"]
    answer = shared.get("/static/old/style.css", if_none_match=f'"other", {tag}')
    assert (answer.status, answer.body) == (304, b"")


def test_plotly_comes_from_the_installed_wheel_under_its_version(shared: Served) -> None:
    answer = shared.get(f"/static/{plotly_version()}/{PLOTLY}")
    assert answer.headers["cache-control"] == FOR_EVER
    assert answer.body[:2000].find(b"plotly.js v") > 0


@pytest.mark.parametrize("name", ["base.html", "plotly.d.ts", "__init__.py", "..%2fpages.py", "%2e%2e", "nothing.js"])
def test_nothing_but_the_front_ends_files_is_served(shared: Served, name: str) -> None:
    assert shared.get(f"/static/{frontend_version()}/{name}").status == 404


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate, br", "br;q=1.0, gzip;q=0.8"])
def test_a_file_is_sent_compressed_to_whom_takes_it(shared: Served, accepted: str) -> None:
    path = f"/static/{plotly_version()}/plotly.min.js"
    plain, packed = shared.get(path), shared.get(path, accept_encoding=accepted)
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert packed.headers["etag"] != plain.headers["etag"]
    again = shared.get(path, accept_encoding=accepted, if_none_match=packed.headers["etag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("accepted", ["", "br", "gzip;q=0", "identity, gzip; q=0.0"])
def test_a_file_is_sent_plain_to_whom_does_not(shared: Served, accepted: str) -> None:
    answer = shared.get("/static/old/style.css", accept_encoding=accepted)
    assert "content-encoding" not in answer.headers
