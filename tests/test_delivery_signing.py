"""The signature of a webhook: the standard's own example, what changes it, and the receiver in the docs."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scalescope_server.delivery.signing import BadSecretError, key_of, signature, signed_headers

# Of the specification at https://github.com/standard-webhooks/standard-webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EXAMPLE = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_example_of_the_specification_is_signed_as_it_says() -> None:
    assert signature(key_of(SECRET), *EXAMPLE) == SIGNED


def test_another_id_time_body_or_key_is_another_signature() -> None:
    message, at, body = EXAMPLE
    key = key_of(SECRET)
    changed = [
        signature(key, "msg_other", at, body),
        signature(key, message, at + 1, body),
        signature(key, message, at, body + b" "),
        signature(key + b"x", message, at, body),
    ]
    assert len({SIGNED, *changed}) == 5


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "secret", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA", "whsec_*", f"whsec_{'A' * 88}"],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(BadSecretError, match="expected") as caught:
        key_of(secret)
    assert not secret or secret == "whsec_" or secret not in str(caught.value)


def test_a_secret_made_as_the_refusal_says_is_taken() -> None:
    made = base64.b64encode(bytes(range(32))).decode()
    assert key_of(f"whsec_{made}") == bytes(range(32))


def test_the_receiver_in_the_docs_takes_what_is_signed_and_nothing_else() -> None:
    docs = (Path(__file__).parent.parent / "docs/alerts.md").read_text()
    (code,) = re.findall(r"```python\n(.*?def verified.*?)```", docs, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    verified = names["verified"]
    at, body = 1_700_000_000, b'{"type": "alerts"}'
    headers = dict(signed_headers(key_of(SECRET), "key-1", at, body))
    assert verified(SECRET, headers, body, now=at + 10) == json.loads(body)
    for wrong in (
        {"body": body + b" "},
        {"now": at + 3600},
        {"now": at - 3600},
        {"secret": "whsec_" + base64.b64encode(bytes(24)).decode()},
        {"headers": headers | {"webhook-id": "key-2"}},
        {"headers": headers | {"webhook-signature": "v1,AAAA"}},
    ):
        given = {"secret": SECRET, "headers": headers, "body": body, "now": at} | wrong
        with pytest.raises(ValueError, match=r"signature|time"):
            verified(given["secret"], given["headers"], given["body"], now=given["now"])
