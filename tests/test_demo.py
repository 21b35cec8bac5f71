"""The demo: real trainings that show what their scenario promises, and a command that ends in order."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from scalescope.cli import main
from scalescope.demo.model import CONTEXT, CharacterGPT
from scalescope.demo.scenarios import SCENARIOS
from scalescope.demo.server import is_ready, serving
from scalescope.demo.text import Corpus
from scalescope.demo.training import Moment, train
from scalescope.errors import CommandError

from tests.small_link import until
from tests.small_server import free_port

DEADLINE_S = 150
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def moments_of(scenario: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> list[Moment]:
    monkeypatch.setenv("SCALESCOPE_OFF", "1")
    moments: list[Moment] = []
    train(SCENARIOS[scenario], steps=steps, url=DEAD, report=moments.append)
    assert [moment.attempted for moment in moments] == list(range(steps + 1))
    return moments


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "scalescope.cli", "demo", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def listed(database: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "scalescope.cli", "runs", "--json", "--database", str(database)]
    (run,) = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S).stdout)["items"]
    assert isinstance(run, dict)
    return run


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_targets_are_the_inputs_one_character_later() -> None:
    inputs, targets = Corpus().batch(8, torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (8, CONTEXT)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_text_is_long_enough_to_learn_from_and_plain() -> None:
    corpus = Corpus()
    assert 90 <= corpus.characters <= 100
    assert len(corpus._indexes) > 300_000


def test_no_place_of_the_model_sees_what_comes_after_it() -> None:
    torch.manual_seed(0)
    model = CharacterGPT(10).eval()
    one = torch.zeros(1, CONTEXT, dtype=torch.long)
    other = one.clone()
    other[0, 20:] = 1
    changed = (model(one) - model(other)).abs().amax(dim=2)[0]
    assert changed[:20].max() < 1e-6
    assert changed[20] > 1e-3


def test_healthy_skips_while_the_scale_settles_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = moments_of("healthy", 60, monkeypatch)
    assert moments[20].skipped > 0
    assert moments[60].skipped == moments[20].skipped
    assert moments[60].loss < moments[10].loss


def test_thrash_loses_many_updates_for_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = moments_of("thrash", 80, monkeypatch)
    late = moments[80].skipped - moments[20].skipped
    assert late >= 2


def test_the_command_ends_with_everything_stored(tmp_path: Path) -> None:
    port = free_port()
    database = tmp_path / "runs.db"
    with demo("--steps", "30", "--exit", "--port", str(port), "--database", str(database)) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    assert re.match(rf"Dashboard: http://127\.0\.0\.1:{port}/runs/\w+\n", out)
    assert "30 updates attempted" in out
    run = listed(database)
    assert (run["attempted"], run["state"], run["project"], run["name"]) == (30, "finished", "demo", "healthy")
    assert int(str(run["skipped"])) > 0
    assert int(str(run["applied"])) + int(str(run["skipped"])) == 30
    assert is_free(port)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_stays_up_until_interrupted_and_then_goes(tmp_path: Path, how: signal.Signals) -> None:
    port = free_port()
    with demo("--steps", "2", "--port", str(port), "--database", str(tmp_path / "runs.db")) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("The server stays up") for line in lines)
        until(lambda: is_ready(f"http://127.0.0.1:{port}"))
        process.send_signal(how)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, "")
    assert is_free(port)


def test_a_server_that_is_named_is_used_and_not_stopped(tmp_path: Path) -> None:
    with serving(free_port(), str(tmp_path / "runs.db")) as (url, ours):
        assert ours
        with demo("--steps", "2", "--url", url) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (0, "")
        assert f"Dashboard: {url}/runs/" in out
        until(lambda: is_ready(url))
    assert listed(tmp_path / "runs.db")["attempted"] == 2


@contextmanager
def other_server() -> Iterator[int]:
    """Something on a port that is not Scalescope."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "fine"}')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_program_on_the_port_is_not_taken_for_scalescope() -> None:
    with other_server() as port:
        assert not is_ready(f"http://127.0.0.1:{port}")
        with pytest.raises(CommandError, match=f"port {port} is taken"), serving(port, None):
            pass


def test_a_dead_address_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--url", DEAD]) == 1
    expected = f"scalescope: no scalescope server is ready at {DEAD}: start one with scalescope serve\n"
    assert capsys.readouterr() == ("", expected)


def test_a_server_that_cannot_start_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["demo", "--port", str(free_port()), "--database", str(blocked / "runs.db")]) == 1
    told = capfd.readouterr().err.splitlines()
    assert told[-1] == "scalescope: the server did not start; see above, and try: scalescope serve"


def test_a_demo_that_would_record_nothing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALESCOPE_OFF", "1")
    assert main(["demo", "--url", DEAD]) == 1
    assert capsys.readouterr().err == "scalescope: SCALESCOPE_OFF is set, so nothing would be recorded: unset it\n"
