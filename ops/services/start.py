"""All local servers of one owner: started in parallel, stopped together."""

import os
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ops.services import etcd, postgres, rabbitmq, valkey
from ops.services.errors import ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.opensearch import server as opensearch

#: Servers by the environment variable whose address is used instead.
VARIABLES = {
    "valkey": "REDIS_URL",
    "postgres": "POSTGRES_URL",
    "opensearch": "OPENSEARCH_URL",
    "etcd": "ETCD_URL",
    "rabbitmq": "RABBITMQ_URL",
}


@dataclass(frozen=True)
class Addresses:
    """Where the servers are. None: not wanted, or it cannot run here (then `missing` says why, in one line)."""

    redis_url: str | None = field(default=None, repr=False)
    postgres_url: str | None = field(default=None, repr=False)
    opensearch_url: str | None = field(default=None, repr=False)
    etcd_url: str | None = field(default=None, repr=False)
    rabbitmq_url: str | None = field(default=None, repr=False)
    missing: Mapping[str, ServerMissing] = field(default_factory=dict)

    def environ(self) -> dict[str, str]:
        """The addresses as environment variables."""
        values = (self.redis_url, self.postgres_url, self.opensearch_url, self.etcd_url, self.rabbitmq_url)
        return {name: value for name, value in zip(VARIABLES.values(), values, strict=True) if value}


class Services:
    """The servers of one owner, on one state folder. A context manager; `stop` ends all of them.

    Args:
        state_dir: where their data and logs are; made if missing. One owner at a time.
        want: names out of `VARIABLES`.
        durable: False for throw-away servers, which then do not wait for the disk.
        environ: where addresses of existing servers and the settings for Java and the cache are read.
        on_ready: called with each server's name and address as it answers, from several threads.
        on_end: called with each process that ended, asked to or not, from a thread of the keeper's.
    """

    def __init__(
        self,
        state_dir: Path,
        want: Collection[str] = ("valkey", "postgres", "opensearch"),
        *,
        durable: bool = True,
        environ: Mapping[str, str] = os.environ,
        on_ready: Callable[[str, str], None] = lambda *_: None,
        on_end: Callable[[Child], None] = lambda _: None,
    ) -> None:
        unknown = set(want) - set(VARIABLES)
        if unknown:
            raise ValueError(f"no such servers: {', '.join(sorted(unknown))}")
        self.state_dir = state_dir.resolve()
        self._want = want
        self._durable = durable
        self._environ = environ
        self._on_ready = on_ready
        self._cancelled = threading.Event()
        self.children: dict[str, Child] = {}
        logs = self.state_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.keeper = Keeper(logs / "keeper.log", on_end)

    def start(self) -> Addresses:
        """Start what is wanted and has no address yet; returns when all of them answer.

        Raises ServerFailed when one does not; all are stopped then. One that cannot run here is in `missing`.
        """
        try:
            with ThreadPoolExecutor(len(VARIABLES), thread_name_prefix="start") as pool:
                wanted = {name: pool.submit(self._start_one, name) for name in VARIABLES if name in self._want}
                try:
                    found = {name: future.result() for name, future in wanted.items()}
                except BaseException:
                    self._cancelled.set()
                    raise
        except BaseException:
            self.stop()
            raise
        urls = {f"{VARIABLES[name].lower()}": value for name, value in found.items() if isinstance(value, str)}
        missing = {name: value for name, value in found.items() if isinstance(value, ServerMissing)}
        return Addresses(**urls, missing=missing)

    def _start_one(self, name: str) -> str | ServerMissing:
        url = self._environ.get(VARIABLES[name])
        if not url:
            try:
                url, child = self._launch(name)
            except ServerMissing as missing:
                return missing
            self.children[name] = child
        self._on_ready(name, url)
        return url

    def _launch(self, name: str) -> tuple[str, Child]:
        match name:
            case "valkey":
                return valkey.start(self.keeper, self.state_dir, self._durable)
            case "postgres":
                return postgres.start(self.keeper, self.state_dir, self._durable)
            case "opensearch":
                return opensearch.start(self.keeper, self.state_dir, self._environ, self._cancelled)
            case "rabbitmq":
                return rabbitmq.start(self.keeper, self.state_dir)
            case _:
                return etcd.start(self.keeper, self.state_dir)

    def stop(self) -> None:
        """Stop every process of this owner, in order of rank. Safe to call twice."""
        self.keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
