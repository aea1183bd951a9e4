"""A server takes its port, or says in one line why it cannot; and ends as it is told."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from regard import cli
from regard.serving.config import ServeConfig
from regard.serving.door import address, listen
from tests.serving.servers import directory
from tests.serving.toys import LINES


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with listen(ServeConfig(port=0)) as door:
        port = door.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port {port} of 127\.0\.0\.1 is in use: choose another with --port"):
            listen(ServeConfig(port=port))
        command = ["serve", str(directory(tmp_path / "a")), "--port", str(port)]
        found = CliRunner().invoke(cli.app, command)
        assert "is in use" in str(found.exception)


def test_other_machines_are_served_only_with_a_key_or_if_that_is_said() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ValueError, match="can be reached from other machines, and there is no API key"):
            listen(ServeConfig(host=host, port=0))
    for config in (
        ServeConfig(host="0.0.0.0", port=0, anyone=True),
        ServeConfig(host="0.0.0.0", port=0, api_keys=("k",)),
    ):
        with listen(config) as door:
            assert address(door).startswith("http://127.0.0.1:")
    with listen(ServeConfig(host="localhost", port=0)) as door:
        assert re.fullmatch(r"http://(127\.0\.0\.1|\[::1\]):\d+", address(door))


def test_an_address_that_is_not_ours_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"cannot listen on port 0 of 192\.0\.2\.1"):
        listen(ServeConfig(host="192.0.2.1", port=0, anyone=True))
    with pytest.raises(ValueError, match="there is no address"):
        listen(ServeConfig(host="no such host", port=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a directory"),
        (["{model}", "--queue", "0"], "queue = 0"),
        (["{model}", "--keys", "nowhere"], "nowhere"),
        (["{model}", "--host", "0.0.0.0"], "no API key"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], message: str) -> None:
    model = str(directory(tmp_path / "a"))
    found = CliRunner().invoke(cli.app, ["serve", *(each.format(model=model) for each in arguments)])
    assert isinstance(found.exception, ValueError | OSError)
    assert message in str(found.exception)


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "regard", "serve", str(directory(tmp_path / "a")), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.match(r"serving at (http://127\.0\.0\.1:\d+) ", line)
        assert found, line
        fields = {"q": LINES[0], "source": "en", "target": "es"}
        assert httpx.post(f"{found[1]}/translate", json=fields, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(30) in (0, -signal.SIGTERM)
    assert "Traceback" not in rest
    assert re.search(r"POST /translate 200 [\d.]+ ms 10 characters", rest)
    with (
        pytest.raises(OSError, match="refused"),
        socket.create_connection(("127.0.0.1", int(found[1].rsplit(":", 1)[1]))),
    ):
        pass
