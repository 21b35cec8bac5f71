"""Sentences that are read, and those that are not: where they go wrong, and what is said about it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scalescope_server.rules.errors import Place, SentenceError
from scalescope_server.rules.expression import (
    Across,
    And,
    Arithmetic,
    Comparison,
    Condition,
    Counted,
    Duration,
    Expression,
    Finding,
    Flag,
    Matching,
    Measured,
    Nonfinite,
    Not,
    NoUpdate,
    Number,
    OfRanks,
    Often,
    Or,
    Over,
    RankDisagreement,
    RunIs,
    Seconds,
    Series,
    Updates,
)
from scalescope_server.rules.parsing import LONGEST, parse, parse_duration

SKIPPED = Flag(Series("skipped"))
SUBNORMAL = Measured("subnormal_share", "blocks.*")
MEDIAN = Over("median", Series("grad_norm"), Updates(500))
LOST = Or((Flag(Series("skipped")), Nonfinite(Series("loss"))))


@pytest.mark.parametrize(
    ("sentence", "condition", "hold"),
    [
        (
            "when changes(scale, 200 steps) >= 6 for 50 steps",
            Comparison(">=", Over("changes", Series("scale"), Updates(200)), Number(6)),
            Updates(50),
        ),
        (
            'when max by layer(subnormal_share{layer="blocks.*"}) > 20% for 5 min',
            Comparison(">", Across("max", "layer", SUBNORMAL), Number(0.2, "%")),
            Seconds(300),
        ),
        ("when skipped in 8 of 10 updates", Often(SKIPPED, 8, 10), None),
        ("when scale < 1", Comparison("<", Series("scale"), Number(1)), None),
        ("when finding(SCALE_THRASH)", Finding("SCALE_THRASH"), None),
        ("when no update for 10 min", NoUpdate(Seconds(600)), None),
        (
            "when grad_norm > 4 * median(grad_norm, 500 steps)",
            Comparison(">", Series("grad_norm"), Arithmetic("*", Number(4), MEDIAN)),
            None,
        ),
        ("when rank disagreement(scale)", RankDisagreement("scale"), None),
        ("run is not crashed", Not(RunIs("crashed")), None),
        (
            "rate(skipped or loss is not finite, 100 updates) > 5%",
            Comparison(">", Counted("rate", LOST, Updates(100)), Number(0.05, "%")),
            None,
        ),
        (
            "count by rank(skipped) >= 2",
            Comparison(">=", Matching("rank", Flag(OfRanks("skipped"))), Number(2)),
            None,
        ),
        (
            "sum(tokens, 1 h) > 1 and not skipped",
            And((Comparison(">", Over("sum", Series("tokens"), Seconds(3600)), Number(1)), Not(SKIPPED))),
            None,
        ),
    ],
)
def test_a_sentence_is_read(sentence: str, condition: Condition, hold: Duration | None) -> None:
    assert parse(sentence) == Expression(condition, hold)


def test_a_sentence_says_how_long_it_keeps_firing() -> None:
    read = parse("when skipped for 3 steps keep firing for 2 h")
    assert read == Expression(SKIPPED, Updates(3), Seconds(7200))


def test_within_by_layer_a_name_is_a_measure_of_layers_and_outside_a_series() -> None:
    both = parse("max by layer(amax) > 4 * amax").condition
    assert both == Comparison(">", Across("max", "layer", Measured("amax")), Arithmetic("*", Number(4), Series("amax")))


def test_a_name_in_quotes_is_a_series_whatever_it_is_called() -> None:
    for name in ("sclae", "and", "val/loss", 'a "b" \\ c', "norm", "日本"):
        written = name.replace("\\", "\\\\").replace('"', '\\"')
        assert parse(f'"{written}" > 1').condition == Comparison(">", Series(name), Number(1))


def test_one_letter_that_makes_a_known_name_of_another_is_a_slip_of_the_pen() -> None:
    for slip in ("losss", "los", "lozs", "lsos", "stpe_ms"):
        with pytest.raises(SentenceError, match="did you mean"):
            parse(f"{slip} > 1")


def test_names_of_ones_own_are_taken_as_they_are() -> None:
    for name in ("loss2", "val_loss", "train_loss", "lr", "perplexity", "kl", "grad_norm_clipped"):
        assert parse(f"{name} > 1").condition == Comparison(">", Series(name), Number(1))


# A sentence, and below it what is said at which of its columns.
WRONG = """
when
    ^ expected a value or a condition, such as scale or changes(scale, 200 steps), got the end of the text
scale
^ expected a condition, got a number, "scale": compare it with something, as in "scale > 1"
scale 5
      ^ expected a comparison such as > 1, "and", "or", "for", "keep firing for" or the end, got "5"
loss spikes
     ^ expected a comparison such as > 1, "and", "or", "for", "keep firing for" or the end, got "spikes"
sclae < 1
^ expected a name of a series, got "sclae": did you mean "scale"? A series of your own that is called so: "sclae"
scale = 1
      ^ got "=": write "==" to compare
scale < 1 && skipped
          ^ got "&": write "and"
1 < scale < 5
          ^ got "<": one comparison at a time
(scale < 1
          ^ expected ")", "and" or "or", got the end of the text
scale < 1)
         ^ got ")"
scale < 1 §
          ^ got "§"
chnges(scale, 200 steps) > 1
^ expected a function, got "chnges": did you mean "changes"?
avg(loss, 5 steps) > 1
^ expected a function, got "avg": did you mean "mean"?
z-score(loss, 5 steps) > 1
  ^ did you mean "zscore"?
changes(scale) > 1
^ expected "changes" of a value, a window, got 1 argument: write, for example, "changes(scale, 200 steps)
changes(scale, 200) > 1
               ^ expected a window such as "200 steps" or "5 min", got "200": say of what: "200 steps", "200 s" or
changes(scale, 200 stps) > 1
                   ^ expected a unit: %, ms, s, min, h, d, steps or updates, got "stps": did you mean "steps"?
changes(scale, loss) > 1
               ^ expected a window such as "200 steps" or "5 min"
mean(loss, 0 steps) > 1
           ^ expected a whole number of updates, 1 to 100,000, got "0 steps"
mean(loss, 2.5 steps) > 1
           ^ expected a whole number of updates
mean(loss, 30 days) > 1
           ^ expected a time of more than nothing and at most 7 days, got "30 days"
mean(loss > 1, 5 steps) > 1
     ^ expected a value, got a condition, "loss > 1"
count(loss, 5 steps) > 1
      ^ expected a condition, got a number, "loss"
quantile(loss, 95, 5 steps) > 1
               ^ expected a share from 0% to 100%, got a number, "95": write, for example, "95%"
subnormal_share > 20
                  ^ expected a share, got "20": write "20%"
grad_norm > 20%
            ^ expected a number like grad_norm, got a share, "20%"
scale > 5 min
        ^ expected a number like scale, got a time, "5 min"
skipped > 5%
          ^ expected a yes or no like skipped, got a share, "5%": write "rate(skipped, 1000 steps)"
scale > 5 steps
        ^ expected a value, got "5 steps", a number of updates: write 5 alone
loss > 1e999
       ^ expected a number that a float64 can hold, got "1e999"
loss > 2^-2000
       ^ expected a number that a float64 can hold, got "2^-2000"
absorbed_share > 20%
^ expected one value for the run, got absorbed_share, one of each layer: say which of them counts
max by layer(forward_headroom) < 1
             ^ write "by module" instead of "by layer"
max by layer(loss) < 1
             ^ expected a value of each layer, got a number, "loss": what there is one of for each layer: zero_share
max by rank(loss) < 1
            ^ what there is one of for each rank: scale, skipped, applied
max by expert(loss) < 1
       ^ expected "layer", "module" or "rank", got "expert"
mix by layer(norm) < 1
^ expected a function, got "mix": did you mean "min"?
max by layer(norn) < 1
             ^ did you mean "norm"?
max by layer(nrm{layer="x"}) > 1
             ^ expected a measure of layers or modules, got "nrm": did you mean "norm"?
max by layer(norm{module="x"}) > 1
                  ^ expected "layer", got "module": write layer="x"
max by layer(norm{layer='x'}) > 1
                        ^ got "'": write texts in double quotes
max by layer(norm{layer=""}) > 1
                        ^ "*" stands for every layer
norm{layer="x"} > 1
^ expected one value for the run, got norm, one of each layer
finding(SCALE_TRASH)
        ^ expected a code of a finding, got "SCALE_TRASH": did you mean "SCALE_THRASH"?
rank disagreement(loss)
                  ^ expected what ranks are compared in, got "loss": there are scale, skipped
layer disagreement(scale)
^ expected "rank disagreement"
skipped in 8 of 10 min
                ^ expected a number of updates, got "10 min": write "count(skipped, 10 min) >= 8"
skipped in 12 of 10 updates
           ^ expected a whole number from 1 to 10, got "12"
scale < 1 for 50
              ^ say of what: "50 steps", "50 s" or "50 min"
scale < 1 for soon
              ^ expected a duration such as "50 steps" or "30s", got "soon"
scale < 1 keep firing 50 steps
                      ^ expected "for", got "50"
no update for 10 steps
              ^ expected a time such as "10 min", got "10 steps"
count(no update for 5 min, 5 steps)>1
      ^ expected a condition on updates
run is gone
       ^ expected a state of a run: running, silent, crashed, finished, got "gone"
run is silet
       ^ did you mean "silent"?
loss is nan
        ^ expected "finite", got "nan"
"a\\q" > 1
^ write a backslash as
"""


_LINES = WRONG.strip("\n").splitlines()


@pytest.mark.parametrize(("sentence", "below"), list(zip(_LINES[::2], _LINES[1::2], strict=True)))
def test_an_error_points_at_the_place_and_says_what_to_do(sentence: str, below: str) -> None:
    told = below.lstrip().removeprefix("^ ")
    with pytest.raises(SentenceError) as caught:
        parse(sentence)
    place = caught.value.place
    assert (place.line, place.column) == (1, below.index("^") + 1)
    assert told in caught.value.message
    assert str(caught.value).startswith(f"line {place.line}, column {place.column}: ")
    # What a page underlines.
    assert place.start == place.column - 1 <= place.end <= len(sentence)


def test_the_place_is_told_by_line_where_a_sentence_has_several() -> None:
    with pytest.raises(SentenceError) as caught:
        parse("when scale < 1\n  and skiped")
    assert caught.value.place[:2] == (2, 7)
    with pytest.raises(SentenceError) as caught:
        parse("when scale < 1\n  and")
    assert caught.value.place[:2] == (2, 6)


def test_what_is_too_long_or_too_deep_to_be_read_is_refused() -> None:
    with pytest.raises(SentenceError, match="at most 2,000 characters, got 2,001 characters"):
        parse("x" * (LONGEST + 1))
    for opening in ("not ", "-", "log2("):
        with pytest.raises(SentenceError, match="more than 40 pieces in each other"):
            parse(opening * 300 + "1" + ")" * 300 * (opening == "log2("))
    assert parse("(" * 300 + "skipped" + ")" * 300).condition == SKIPPED


@pytest.mark.parametrize("text", ["soon", "", "50", "50 stps", "-5 s", "0 s", "5 %", "50 steps more"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SentenceError, match="expected"):
        parse_duration(text)


@pytest.mark.parametrize("sentence", ["when mean(loss, 1e30 steps) > 1", "when skipped in 1e30 of 10 updates"])
def test_a_number_beyond_all_measure_is_refused_like_any_other(sentence: str) -> None:
    with pytest.raises(SentenceError, match="whole number"):
        parse(sentence)


_WORDS = (
    "when scale skipped loss norm steps min for keep firing and or not in of is finite by layer rank max mean count "
    "finding SCALE_ZERO no update run silent"
)
_SIGNS = '< > == = ( ) , 5 20% 200 2^-24 1e3 { } layer="a*" - + * / " \\'
_PIECES = st.sampled_from([*_WORDS.split(), *_SIGNS.split(), "\n"])


@settings(max_examples=150, deadline=None)
@given(st.lists(_PIECES, max_size=14).map(" ".join) | st.text(max_size=30))
def test_whatever_is_typed_it_is_read_or_the_place_of_an_error_is_in_it(text: str) -> None:
    place = place_of_error(text)
    assert place is None or 0 <= place.start <= place.end <= len(text)


def place_of_error(text: str) -> Place | None:
    try:
        parse(text)
    except SentenceError as error:
        return error.place
    return None
