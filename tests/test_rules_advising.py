"""What newcomers write, and what they are told to write instead."""

from __future__ import annotations

import pytest
from scalescope_server.rules.errors import SentenceError
from scalescope_server.rules.parsing import parse


@pytest.mark.parametrize(
    ("sentence", "column", "advice"),
    [
        ("if scale < 1", 4, 'write "when" in place of "if"'),
        ("WHEN scale < 1", 6, 'words are written small: "when"'),
        ("scale < 1 AND skipped", 15, 'words are written small: "and"'),
        ("scale = 1", 7, 'write "==" to compare'),
        ("1 < scale < 2", 11, 'one comparison at a time: "128 < scale and scale < 1024"'),
        ("max(loss, 200 steps > 3", 24, 'the "(" at column 4 has no ")"'),
        ("(scale < 1 and\n(skipped or scale < 2)", 2, 'the "(" at column 1 has no ")"'),
        ('max by layer(zero_share{layer="a)"}', 36, 'the "(" at column 13 has no ")"'),
        ("scale < 1)", 10, 'no "(" is open here: leave it out'),
        ("max by layer zero_share > 20%", 14, 'write "max by layer(zero_share)"'),
        ("max by layer(zero_share{layer=blocks.*}) > 20%", 31, 'write ="blocks.*"'),
        ('max by layer(zero_share{layer="a.[0"}) > 20%', 31, 'write "]" behind what the "[" begins'),
        ("max by layer(zero_share{layer='a'}) > 20%", 31, 'write texts in double quotes: "blocks.*"'),
        ("finding(SCALE_TRASH)", 9, 'did you mean "SCALE_THRASH"?'),
        ("gradnorm > 3", 1, 'did you mean "grad_norm"?'),
        ("mean(loss, 200) > 8", 12, 'say of what: "200 steps", "200 s" or "200 min"'),
        ("flush_share > 20", 15, 'write "20%"'),
        ("scale > 20%", 9, "a share is written as 20%"),
        ("subnormal_share{layer=\"a\"} > 20%", 1, 'say which of them counts: "max by layer(...)"'),
        ("", 1, ""),
    ],
)  # fmt: skip
def test_a_slip_is_told_where_it_is_and_what_to_write(sentence: str, column: int, advice: str) -> None:
    with pytest.raises(SentenceError) as caught:
        parse(sentence)
    if "\n" not in sentence:
        assert caught.value.place.column == column
    assert advice in str(caught.value)


def test_of_an_empty_sentence_it_is_said_what_it_begins_with() -> None:
    with pytest.raises(SentenceError, match="expected a value or a condition"):
        parse("")
