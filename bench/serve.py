"""A server under load: what batching gains, how long one waits, whether memory grows, and what overload does.

    python bench/serve.py runs/quickstart sentences.en --seconds 30 --clients 32

Two servers of the same model, one that batches and one that translates each request by itself, are driven in turns by
clients that ask one sentence after the other over connections of their own. Every answer is compared with the offline
translation of its sentence. A third server with a short queue meets more clients than it has room for. Server and
clients share the machine: the figures are for comparing, not for boasting.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

import regard
from regard.api import told

CONTESTANTS = {
    "batched": [],
    "one by one": ["--batch-tokens", "1", "--wait", "0"],
    "overloaded": ["--queue", "8"],
}


@dataclass
class Load:
    """What clients met."""

    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)  # of requests that were answered
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0


class Server:
    """`regard serve` in a process of its own."""

    def __init__(self, model: Path, options: list[str]) -> None:
        command = [sys.executable, "-m", "regard", "serve", str(model), "--port", "0", "--no-explorer", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        found = re.match(r"serving at http://(\S+) ", line := self.process.stderr.readline())
        if found is None:
            raise SystemExit(line)
        self.place = urlsplit(f"//{found[1]}").netloc
        self._log = ThreadPoolExecutor(1)
        self._log.submit(self.process.stderr.read)  # else its log would fill the pipe, and stop it

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self._log.shutdown()

    @property
    def mib(self) -> float:
        """Its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def drive(server: Server, pair: tuple[str, str], expected: dict[str, str], clients: int, seconds: float) -> Load:
    """Clients that ask without a pause for so long, each beginning elsewhere."""
    source, target = pair
    texts = list(expected)
    begin = time.perf_counter()

    def client(number: int) -> Load:
        load = Load()  # of its own: threads that count together lose count
        connection = http.client.HTTPConnection(server.place, timeout=120)
        i = number * len(texts) // clients
        while time.perf_counter() - begin < seconds:
            text = texts[i % len(texts)]
            body = json.dumps({"q": text, "source": source, "target": target})
            asked = time.perf_counter()
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = json.load(answer)
            load.statuses[answer.status] += 1
            if answer.status == 200:
                load.waits.append(time.perf_counter() - asked)
                load.wrong += said["translatedText"] != expected[text]
                i += 1
            else:
                time.sleep(0.05)
        connection.close()
        return load

    with ThreadPoolExecutor(clients) as pool:
        loads = list(pool.map(client, range(clients)))
    return Load(
        time.perf_counter() - begin,
        [wait for load in loads for wait in load.waits],
        sum((load.statuses for load in loads), Counter()),
        sum(load.wrong for load in loads),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path, help="sentences, one a line")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each of the rounds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--sentences", type=int, default=500)
    args = parser.parse_args()
    texts = list(dict.fromkeys(filter(None, map(str.strip, args.text.read_text("utf-8").split("\n")))))[
        : args.sentences
    ]
    said = regard.load(args.model).translate(texts, split=True)
    expected, pair = dict(zip(texts, said, strict=True)), told(args.model).task.languages
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(args.model, options)) for name, options in CONTESTANTS.items()}
        for server in servers.values():
            drive(server, pair, expected, 2, 1.0)  # they load the model at the first request
        loads: dict[str, list[Load]] = {name: [] for name in servers}
        memory: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(args.rounds):
            for name, server in servers.items():
                clients = 4 * args.clients if name == "overloaded" else args.clients
                loads[name].append(drive(server, pair, expected, clients, args.seconds))
                memory[name].append(server.mib)
        after = drive(servers["overloaded"], pair, expected, 1, 1.0)
    table = Table(
        "server", "clients", "requests/s", "p50, ms", "p99, ms", "200", "429", "others", "wrong", "MiB by round"
    )
    for name, each in loads.items():
        waits = sorted(wait for load in each for wait in load.waits)
        total = sum((load.statuses for load in each), Counter())
        table.add_row(
            name,
            str(4 * args.clients if name == "overloaded" else args.clients),
            f"{statistics.median(len(load.waits) / load.seconds for load in each):.1f}",
            f"{1e3 * statistics.median(waits):.0f}",
            f"{1e3 * waits[int(0.99 * len(waits))]:.0f}",
            str(total[200]),
            str(total[429]),
            str(total.total() - total[200] - total[429]),
            str(sum(load.wrong for load in each)),
            " ".join(f"{mib:.0f}" for mib in memory[name]),
        )
    console = Console(width=140)
    console.print(table)
    rates = [[len(load.waits) / load.seconds for load in loads[name]] for name in ("batched", "one by one")]
    gain = statistics.median(a / b for a, b in zip(*rates, strict=True))
    console.print(f"batched / one by one: {gain:.2f}")
    console.print(f"after the overload: {dict(after.statuses)}, {after.wrong} wrong")


if __name__ == "__main__":
    main()
