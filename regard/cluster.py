"""The machines of a Ray cluster: what one does to items one after the other, they do side by side.

Results come in the order of the items, of which a few are on their way at a time: memory is bounded. What a machine was
at when it died is done again by another. Work is sent as it is, so that the code must be the same there.
"""

import logging
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

from regard.checks import at_least, need

Do = Callable[[Any, Any], Any]  # what was opened, and an item -> a result
Spread = Callable[[Do, Iterable[Any]], Iterator[Any]]  # the results of all items, in order
AHEAD = 3  # items for each that can be worked on: who is quick need not wait for who is slow
TRIES = 4  # of an item, before it is taken to be what kills the machines
LOOK = 10.0  # seconds of waiting after which is seen whether there is anybody to wait for
_opened = dict[str, Any]()  # on a machine of the cluster, in the process that works there


class Failed(NamedTuple):
    """What somebody else could not do."""

    why: str


def here(opened: Any) -> Spread:
    """Work by this process, with what it has opened.

    >>> [*here(10)(lambda ten, item: ten * item, [1, 2])]
    [10, 20]
    """
    return lambda do, items: (do(opened, item) for item in items)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, and in it the cluster at an address; "local" is one that is started here."""
    ray = need("ray", "cluster")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here, nobody is told
    try:
        if found := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address):  # Ray itself would try for ten minutes
            local = found[1] in ("localhost", "127.0.0.1")  # for which Ray takes this machine's other address
            host = ray.util.get_node_ip_address() if local else found[1]
            socket.create_connection((host, int(found[2])), timeout=5).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, OverflowError, ValueError) as error:
        raise ValueError(f"no Ray cluster answers at {address!r} ({error}): start one, or use --ray local") from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def there(address: str, open: Callable[[], Any], cores: int | None = None, gpus: int = 0) -> Iterator[Spread]:
    """Work by the machines of a cluster, on each with what it `open`s once: an item takes so many of their `cores`
    (default: all of the smallest machine) and `gpus`."""
    at_least(1, cores=cores)
    with connected(address) as ray:
        from ray.exceptions import RayError, RayTaskError

        def machines() -> list[dict[str, float]]:
            return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

        each = cores or int(min((has["CPU"] for has in machines()), default=1))

        def places() -> int:
            count = sum(
                int(min(has["CPU"] // each, has.get("GPU", 0) // gpus if gpus else 2**31)) for has in machines()
            )
            if not count:
                wanted = f"{each} CPUs{f' and {gpus} GPUs' if gpus else ''}"
                raise ValueError(f"no machine of the Ray cluster at {address!r} has {wanted}: add one, or ask for less")
            return count

        def got(ref: Any) -> Any:
            try:
                while not ray.wait([ref], timeout=LOOK)[0]:
                    places()  # or there is nobody left
                found = ray.get(ref)
            except RayTaskError as error:  # a mistake of ours, or other code there
                said = str(error).strip().splitlines()[-1]
                raise ValueError(f"a machine of the Ray cluster could not do its work: {said}") from error
            except RayError as error:
                raise ValueError(f"{TRIES} times the machine died that was at it ({type(error).__name__})") from error
            if isinstance(found, Failed):
                raise ValueError(found.why)
            return found

        how = {"num_cpus": each, "num_gpus": gpus, "max_retries": TRIES - 1, "scheduling_strategy": "SPREAD"}
        task = ray.remote(_elsewhere).options(**how)

        def spread(do: Do, items: Iterable[Any]) -> Iterator[Any]:
            work, waiting, rest = ray.put((version("regard"), each, open, do)), deque[Any](), iter(items)
            broken: Exception | None = None
            while broken is None:
                try:
                    item = next(rest)
                except StopIteration:
                    break
                except Exception as error:  # what came before it is done all the same
                    broken = error
                    break
                waiting.append(task.remote(work, work.hex(), item))
                if len(waiting) >= AHEAD * places():
                    yield got(waiting.popleft())
            while waiting:
                yield got(waiting.popleft())
            if broken is not None:
                raise broken

        places()
        yield spread


def _elsewhere(work: tuple[str, int, Callable[[], Any], Do], key: str, item: Any) -> Any:
    """What is done to an item, on whatever machine this is; what it has opened stays open."""
    import torch

    theirs, cores, open, do = work
    try:
        if key not in _opened:
            if theirs != (own := version("regard")):
                raise ValueError(f"it has regard {own}, not {theirs}")
            torch.set_num_threads(cores)  # Ray allows one unless told otherwise
            _opened[key] = open()
    except (OSError, ValueError) as error:
        needed = "each machine needs the same regard and the same model, at the same path"
        return Failed(f"{socket.gethostname()}, a machine of the Ray cluster, cannot begin: {error}; {needed}")
    try:
        return do(_opened[key], item)
    except (OSError, ValueError) as error:
        return Failed(str(error))
