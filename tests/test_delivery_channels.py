"""What a channel may be, and what of it is shown: never a secret."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scalescope_server.delivery.channels import BadChannelError, Config, Service, Webhook, check_channel, config_of

from tests.receiving import SECRET

WEBHOOK = Webhook("https://hooks.example.com/secret-path?token=secret-token", SECRET)
SERVICE = Service("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")


@pytest.mark.parametrize("config", [WEBHOOK, SERVICE])
def test_what_is_set_up_comes_back_from_the_store_and_nothing_of_it_is_in_its_text(config: Config) -> None:
    check_channel("on call", config, {})
    stored = msgspec.to_builtins(config)
    assert config_of(stored.pop("kind"), stored) == config
    for text in (repr(config), str(config), config.shown):
        assert not any(secret in text for secret in ("secret", "whsec", "T1JJ3T3L2", "TIiaj"))


def test_of_a_webhook_its_server_is_shown_and_of_a_service_its_name() -> None:
    assert (WEBHOOK.shown, SERVICE.shown) == ("https://hooks.example.com/…", "slack://…")


@pytest.mark.parametrize("name", ["", " x", "a/b", "x" * 65, "ünder", "a\nb"])
def test_a_name_is_one_or_refused(name: str) -> None:
    with pytest.raises(BadChannelError, match="expected a name") as caught:
        check_channel(name, SERVICE, {})
    assert caught.value.field == "name"


def test_the_names_of_commands_and_of_what_pages_are_told_are_taken() -> None:
    with pytest.raises(BadChannelError, match="has a command called 'siren'"):
        check_channel("siren", SERVICE, {"siren": None})
    with pytest.raises(BadChannelError, match="open pages"):
        check_channel("browser", SERVICE, {})


@pytest.mark.parametrize(
    ("config", "field", "text"),
    [
        (Webhook("https://hooks.example.com/", "whsec_short"), "secret", "openssl rand"),
        (Webhook("hooks.example.com/secret", SECRET), "url", "expected an address"),
        (Service("json://user:secret@localhost/"), "url", "set up a webhook"),
        (Service("secret"), "url", "set up a webhook"),
        (Service(f"slack://{'secret' * 400}"), "url", "expected an address"),
    ],
)
def test_what_cannot_be_is_refused_and_not_repeated(config: Config, field: str, text: str) -> None:
    with pytest.raises(BadChannelError, match=text) as caught:
        check_channel("chat", config, {})
    assert caught.value.field == field
    assert "whsec_short" not in str(caught.value)
    assert "secret" not in str(caught.value).replace("whsec_", "")


@pytest.mark.parametrize("stored", [{"url": 1}, {}, {"url": "slack://x", "later": 1}])
def test_what_another_version_has_stored_is_told_of_without_what_it_is(stored: dict[str, Any]) -> None:
    for kind in ("webhook", "apprise", "pigeon"):
        with pytest.raises(BadChannelError, match="another version"):
            config_of(kind, stored)
