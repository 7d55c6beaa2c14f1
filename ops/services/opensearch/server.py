"""One OpenSearch node on loopback, inside a JVM of 512 MB, on a given data folder."""

import http.client
import json
import secrets
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fencebeat.clock import system_clock
from ops.services.keeping import Child, Keeper
from ops.services.launch import PROBE_SECONDS, free_ports, launch
from ops.services.opensearch.jars import BUILD_SECONDS, RunMaven, fetch
from ops.services.opensearch.java import find_java

_START_SECONDS = 120.0
_PORTS = (9201, 9299)  # the runner's own bounds
_MODULES = (
    "org.opensearch.transport.Netty4ModulePlugin",
    "org.opensearch.analysis.common.CommonAnalysisModulePlugin",
    "org.opensearch.painless.PainlessModulePlugin",
    "org.opensearch.index.reindex.ReindexModulePlugin",
    "org.opensearch.index.mapper.MapperExtrasModulePlugin",
)
_PLUGINS = ("org.opensearch.knn.plugin.KNNPlugin", "org.opensearch.neuralsearch.plugin.NeuralSearch")


def request(port: int, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One request to a node on loopback. Raises OSError when it does not answer with JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_SECONDS)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"port {port} does not speak OpenSearch: {error!r}") from error
    finally:
        connection.close()


def _kept(keeper: Keeper, cancelled: threading.Event) -> RunMaven:
    """What runs Maven under the keeper, so that it ends with its owner."""

    def run(argv: list[str], cwd: Path, environ: Mapping[str, str], log: Path) -> None:
        clock = system_clock()
        until = clock.elapsed() + BUILD_SECONDS
        log.unlink(missing_ok=True)
        maven = keeper.start("maven", argv, cwd=cwd, env=environ, log=log)
        while not maven.ended.wait(0.1):
            if cancelled.is_set() or clock.elapsed() > until:
                keeper.stop(maven)
                raise subprocess.TimeoutExpired(argv, BUILD_SECONDS)
        if maven.code != 0:
            raise subprocess.CalledProcessError(maven.code or 1, argv)

    return run


def start(
    keeper: Keeper, folder: Path, environ: Mapping[str, str], cancelled: threading.Event | None = None
) -> tuple[str, Child]:
    """Start a node on `folder`, fetching the jars if need be; returns (URL, process).

    Raises ServerMissing (no Java 21+, no Maven) or ServerFailed.
    """
    java = find_java(environ)
    cancelled = cancelled or threading.Event()
    jars = fetch(environ, _kept(keeper, cancelled))
    data = folder / "opensearch"
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    # New at each start: tells our node from another one that took the port first.
    cluster = f"fencebeat-{secrets.token_hex(6)}"
    port = 0

    def run() -> Child:
        nonlocal port
        port = next(free_ports(*_PORTS))
        argv: list[str | Path] = [
            *(java, "-Xms512m", "-Xmx512m", "-XX:+ExitOnOutOfMemoryError"),
            *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--enable-native-access=ALL-UNNAMED"),
            *("--add-modules", "jdk.incubator.vector"),
            *("-cp", ":".join(f"{jars}/{part}/*" for part in ("lib", "knn", "ns"))),
            "org.codelibs.opensearch.runner.OpenSearchRunner",
            *("-numOfNode", "1", "-basePath", data, "-baseHttpPort", str(port - 1), "-clusterName", cluster),
            *("-moduleTypes", ",".join(_MODULES), "-pluginTypes", ",".join(_PLUGINS)),
        ]
        # Its working folder is its own: the runner leaves files there.
        return keeper.start("opensearch", argv, log=folder / "logs" / "opensearch.log", cwd=data, grace=20.0)

    def ready(_: Child) -> bool:
        health = request(port, "GET", "/_cluster/health")
        if health.get("cluster_name") != cluster or health.get("status") not in ("green", "yellow"):
            return False
        # A laptop's disk is often more than 95 % full, where OpenSearch makes every index read-only.
        settings = {"persistent": {"cluster.routing.allocation.disk.threshold_enabled": False}}
        return request(port, "PUT", "/_cluster/settings", settings).get("acknowledged") is True

    child = launch("OpenSearch", run, ready, _START_SECONDS, cancelled)
    return f"http://127.0.0.1:{port}", child
