"""A Postgres of a test's own that can be frozen: the kernel goes on to take connections and data; nobody answers."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from control.effects import LedgerEffects
from index.ledger import open_pool
from tests.support.proxy import Proxy
from tests.support.waiting import until


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Freezer:
    """The processes of one server, found by a session of its own. server_url: of one that only this test uses."""

    def __init__(self, server_url: str) -> None:
        self.url = server_url
        with psycopg.connect(server_url, connect_timeout=10) as session:
            self.postmaster = _parent(session.info.backend_pid)

    @contextmanager
    def frozen(self):
        """SIGSTOP to the postmaster, then to every session; SIGCONT at the end."""
        os.kill(self.postmaster, signal.SIGSTOP)
        until(lambda: _state(self.postmaster) == "T", what="the postmaster stands still")
        stopped = _children(self.postmaster)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in [*stopped, self.postmaster]:
                os.kill(pid, signal.SIGCONT)


@contextmanager
def behind_a_proxy(url: str):
    """A proxy before the Unix socket of this server, and the address through it."""
    folder = conninfo_to_dict(url)["host"]
    with Proxy(f"{folder}/.s.PGSQL.5432", 0) as proxy:
        name = conninfo_to_dict(url)["dbname"]
        user = conninfo_to_dict(url).get("user", "postgres")
        through = f"postgresql://{user}@127.0.0.1:{proxy.port}/{name}?sslmode=disable&gssencmode=disable"
        make_conninfo(through)  # raises when that is no address
        yield proxy, through


def effect_store(namespace: str) -> LedgerEffects:
    """The effect store of a beat, for `fencebeat_effect_store`."""
    return LedgerEffects(open_pool(os.environ["FREEZABLE_LEDGER"], timeout=1.0), namespace)
