"""A process behind the gate: what it may still do, and what not, tried in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.receiving import receiving

PROGRAM = """
import json, os, socket, subprocess, sys
from scalescope_server.delivery.addresses import parse_network
from scalescope_server.delivery.gate import close_gate

port, secret, link = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.symlink(secret, link)
plain = socket.socket()
udp = socket.socket(type=socket.SOCK_DGRAM)
unix = socket.socket(socket.AF_UNIX)
tried = {
    "loopback": lambda: socket.create_connection(("127.0.0.2", port)),
    "name": lambda: socket.create_connection(("localhost", port)).close(),
    "allowed": lambda: socket.create_connection(("127.0.0.1", port)).close(),
    "unresolved": lambda: plain.connect(("localhost", port)),
    "without an error": lambda: plain.connect_ex(("127.0.0.2", port)),
    "datagram": lambda: udp.sendto(b"x", ("10.0.0.1", 53)),
    "socket file": lambda: unix.connect("/dev/log"),
    "secret": lambda: open(secret).read(),
    "descriptor": lambda: os.open(secret, os.O_RDONLY),
    "link": lambda: open(link).read(),
    "write": lambda: open(secret, "w"),
    "program": lambda: subprocess.run(["/bin/true"]),
    "shell": lambda: os.system("true"),
    "own module": lambda: open(os.__file__).close(),
}
told = []
close_gate([parse_network("127.0.0.1")], lambda why, of_address: told.append(why))
found = {}
for name, action in tried.items():
    try:
        action()
        found[name] = "done"
    except PermissionError as error:
        found[name] = str(error)
print(json.dumps([found, told]))
"""


def test_it_connects_to_checked_addresses_and_reads_its_own_files_and_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with receiving() as receiver:
        arguments = [
            str(receiver.port),
            str(secret),
            str(Path(sys.prefix) / f"link-{tmp_path.parent.name}-{receiver.port}"),
        ]
        try:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
            )
        finally:
            Path(arguments[2]).unlink(missing_ok=True)
    found, told = json.loads(done.stdout)
    loopback = "127.0.0.2 is this machine (loopback)"
    assert found == {
        "loopback": loopback,
        "name": "done",
        "allowed": "done",
        "unresolved": "'localhost' is no address",
        "without an error": loopback,
        "datagram": "10.0.0.1 is a private network",
        "socket file": "only the internet is spoken to",
        **dict.fromkeys(("secret", "descriptor", "link"), "files are not read"),
        "write": "files are not written",
        **dict.fromkeys(("program", "shell"), "programs are not started"),
        "own module": "done",
    }
    assert secret.read_text() == "secret"
    assert "files are not written" not in told
