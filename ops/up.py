"""`fencebeat up`: everything on this machine, from nothing to an answered search, until Ctrl-C.

    servers (in parallel) -> ledger's schema -> embedder, two beats, worker, page, Flower -> a sync of each source
    -> progress until the index equals its sources -> stay, or end there with `once`

Every process is held by one keeper (`ops.services`): it ends with us, in order, also when we are killed.
"""

import fcntl
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from config.settings import SourceConfig, settings
from fencebeat.clock import system_clock
from ops.processes import PROCESSES, environment, write_environment
from ops.services import Services
from ops.services.errors import CorpusMissing, IndexDiffers, StateBusy
from ops.services.launch import SOCKET_LIMIT, free_ports, shared_root
from ops.supervise import Supervisor

if TYPE_CHECKING:  # the application's drivers; imported once the servers run and their addresses are known
    from ops.following import Following

LOOK_SECONDS = 0.5
NOTE_SECONDS = 15.0  # between lines of progress where no bar can be drawn
SYNC_EXPIRES = 600
PAGE_PORT, FLOWER_PORT = 8600, 5555  # preferred; another one where they are taken


@dataclass(frozen=True)
class _Corpus:
    """What is indexed: FENCEBEAT_SOURCES as text, and a folder and tenant of it to ask about."""

    sources: str
    folder: Path
    tenant: str


def up(
    corpus: Path | None = None,
    *,
    once: bool = False,
    as_json: bool = False,
    state_dir: Path | None = None,
    with_parent: bool = False,
    given: Mapping[str, str] = os.environ,
) -> int:
    """Run everything; returns an exit code (0: stopped as asked, or equal with `once`).

    Args:
        corpus: folder to index; None: FENCEBEAT_SOURCES, else the project's own docs.
        once: end as soon as the index equals its sources.
        as_json: facts as JSON lines on standard output; sentences go to standard error either way of looking at them.
        state_dir: data, logs and sockets; None: FENCEBEAT_STATE_DIR, else .fencebeat here.
        with_parent: stop in order when the process that started this one is gone, also by SIGKILL.
        given: the environment; addresses in it are used instead of servers of our own.

    Raises:
        CorpusMissing, StateBusy: nothing was started.
        ServerFailed, ProcessFailed, Stalled, SourceFailed, IndexDiffers: everything was stopped again.
    """
    began = system_clock().elapsed()
    chosen = _corpus(corpus, given)
    folder = (state_dir or Path(given.get("FENCEBEAT_STATE_DIR") or ".fencebeat")).resolve()
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        stack.enter_context(_locked(folder))
        try:
            with _interruptible(console):
                if with_parent:
                    _follow_parent()
                run = _Run(folder=folder, corpus=chosen, given=given, console=console, as_json=as_json, began=began)
                stack.callback(run.stop)
                run.start()
                run.follow(once)
        except KeyboardInterrupt:
            return 0
    return 0


class _Run:
    """One run: its servers, its processes, and what is told about them."""

    def __init__(
        self,
        *,
        folder: Path,
        corpus: _Corpus,
        given: Mapping[str, str],
        console: Console,
        as_json: bool,
        began: float,
    ) -> None:
        self._folder, self._corpus, self._console = folder, corpus, console
        self._given = dict(given)  # as it was: our own environment is changed below
        self._as_json, self._began = as_json, began
        self._clock = system_clock()
        self._supervisor = Supervisor(self._say)
        self._services: Services | None = None
        self._environ: dict[str, str] = {}

    def start(self) -> None:
        """Servers, schema, processes, first syncs."""
        self._start_servers()
        from index.ledger.migrate import upgrade  # noqa: PLC0415 - alembic, only when its server is there

        upgrade(settings().postgres_url)
        self._say(f"PostgreSQL, Valkey and target {settings().target} are ready after {self._seconds():.1f} s")
        from ops.following import Following, question_of  # noqa: PLC0415 - reads the addresses when it is imported
        from tasks.wiring import services  # noqa: PLC0415 - as above

        self._following = Following(services(), question_of(self._corpus.folder), self._corpus.tenant, self._began)
        self._start_processes(*(process.name for process in PROCESSES if process.name != "embedder"))
        self._wake_up()
        addresses = {
            name: f"http://127.0.0.1:{self._environ[f'FENCEBEAT_{name.upper()}_PORT']}" for name in ("page", "flower")
        }
        write_environment(self._folder / "env", self._environ, self._given)
        self._fact("started", state_dir=str(self._folder), **addresses)
        self._say(f"Status page {addresses['page']}  Flower {addresses['flower']}  logs {self._folder / 'logs'}")
        self._say(f"Commands in another terminal need these addresses: . {self._folder / 'env'}")

    def follow(self, once: bool) -> None:
        """Tell the progress until the index equals its sources, then stay or return. Raises what `up` raises."""
        following = self._following
        # A search that is late while everything starts is asked again; its traceback would help nobody.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        with _bar(self._console) as show:
            told = self._clock.elapsed()
            while True:
                progress = following.progress()
                show(progress.indexed, progress.documents - progress.absent, progress.chunks, following.embeddings)
                if self._clock.elapsed() - told > NOTE_SECONDS and not self._console.is_terminal:
                    told = self._clock.elapsed()
                    self._say(f"{progress.indexed} of {progress.documents} documents, {progress.chunks} chunks")
                if progress.indexed:
                    self._ask(following)
                report = following.compared(progress)
                # An index of nothing has no answer to wait for.
                if report is not None and (following.hit is not None or not report.documents):
                    break
                following.check_moves(progress, self._folder / "logs")
                self._supervisor.check()
                threading.Event().wait(LOOK_SECONDS)
        figures = following.figures()
        self._fact("equal", **figures.as_dict(), differences=report.differences, restarts=self._supervisor.restarts)
        writes = "" if figures.writes is None else f", {figures.writes} writes by OpenSearch's counter"
        self._say(
            f"{figures.documents} documents, {figures.chunks} chunks, {figures.embeddings} embeddings by the embedder's"
            f" log{writes}; index and sources: {report.differences} differences, {figures.dead} failed,"
            f" after {figures.seconds:.1f} s"
        )
        if once:
            if report.differences or figures.dead:
                raise IndexDiffers(differences=report.differences, dead=figures.dead)
            return
        self._say("Running until Ctrl-C")
        while True:
            threading.Event().wait(3600)

    def stop(self) -> None:
        """Stop all processes, then all servers."""
        for each in (signal.SIGINT, signal.SIGTERM):  # nothing may disturb this
            signal.signal(each, signal.SIG_IGN)
        self._supervisor.release()
        (self._folder / "env").unlink(missing_ok=True)
        if self._services is not None:
            if "tasks.wiring" in sys.modules:
                from tasks.wiring import services  # noqa: PLC0415 - only what was imported has connections

                services().close()
            began = self._clock.elapsed()
            self._services.stop()
            self._say(f"Everything has stopped, in {self._clock.elapsed() - began:.1f} s")

    def _start_servers(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        wanted = {"valkey", "postgres"}
        if self._given.get("FENCEBEAT_TARGET", "opensearch") == "opensearch":
            wanted.add("opensearch")
        if self._given.get("FENCEBEAT_LOCK") == "etcd":
            wanted.add("etcd")
        self._services = Services(
            self._folder,
            wanted,
            environ=self._given,
            on_ready=lambda name, _: self._say(f"{name} answers after {self._seconds():.1f} s"),
            on_end=self._supervisor.on_end,
        )
        self._supervisor.attach(self._services.keeper)
        self._environ = environment(self._folder, self._given)
        socket = self._folder / "embedder.sock"
        if not self._environ.get("EMBEDDER_URL") and len(os.fsencode(socket)) > SOCKET_LIMIT:
            self._environ["EMBEDDER_URL"] = f"unix://{shared_root() / f'embedder-{os.getpid()}.sock'}"
        self._start_processes("embedder")  # it needs no server, and loading its model takes as long as all of them
        with self._console.status("Starting servers (the first time OpenSearch is downloaded, 110 MB)"):
            addresses = self._services.start()
        for child in self._services.children.values():
            self._supervisor.adopt(child)
        self._environ |= addresses.environ()
        self._environ["FENCEBEAT_SOURCES"] = self._corpus.sources
        for name, missing in addresses.missing.items():
            if name != "opensearch":
                raise missing
            self._say(f"{missing} Using pgvector as the target.")
            self._environ["FENCEBEAT_TARGET"] = "pgvector"
        self._environ["FENCEBEAT_PAGE_PORT"] = str(_port(PAGE_PORT))
        self._environ["FENCEBEAT_FLOWER_PORT"] = str(_port(FLOWER_PORT))
        os.environ.update(self._environ)  # our own reading of the ledger and the target uses the same settings
        settings.cache_clear()
        settings()  # refuses an impossible configuration before anything of ours runs

    def _start_processes(self, *wanted: str) -> None:
        assert self._services is not None  # noqa: S101 - `start` has made them
        for process in PROCESSES:
            for name in process.names() if process.name in wanted else ():
                child = self._services.keeper.start(
                    name,
                    process.argv(self._environ),
                    log=self._folder / "logs" / f"{name}.log",
                    env={**self._environ, "FENCEBEAT_PROC": name},
                    cwd=self._folder,
                    rank=process.rank,
                    grace=process.grace,
                )
                self._supervisor.adopt(child)

    def _wake_up(self) -> None:
        """Ask for a sync of each source now; the beats do so again and again, the first time after a minute."""
        from tasks.indexing import sync_source  # noqa: PLC0415 - reads the addresses when it is imported

        for name in settings().sources:
            sync_source.apply_async(args=[name], expires=SYNC_EXPIRES)

    def _ask(self, following: "Following") -> None:
        hit = following.ask()
        if hit is not None:
            place = " > ".join(hit.headings) or hit.title
            excerpt = " ".join(hit.text.split())[:200]
            self._say(
                f"First answer after {following.first_hit_seconds:.1f} s\n  asked   {following.question}"
                f"\n  found   {excerpt}\n  source  {hit.source_id}: {hit.doc_uid} ({place})"
            )

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def _fact(self, fact: str, **values: Any) -> None:
        if self._as_json:
            print(json.dumps({"fact": fact, **values}, default=str, ensure_ascii=False), flush=True)  # noqa: T201 - for programs

    def _seconds(self) -> float:
        return self._clock.elapsed() - self._began


def _corpus(corpus: Path | None, given: Mapping[str, str]) -> _Corpus:
    """What is to be indexed. Raises CorpusMissing."""
    if corpus is None and given.get("FENCEBEAT_SOURCES", "").strip() not in ("", "{}"):
        first = SourceConfig(**next(iter(json.loads(given["FENCEBEAT_SOURCES"]).values())))
        return _Corpus(given["FENCEBEAT_SOURCES"], _readable(first.path), first.tenant)
    folder = _readable(corpus if corpus is not None else Path(__file__).parents[1] / "docs")
    # Named after its folder: another corpus on the same state is another source, not the deletion of the first.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._")[:100] or "corpus"
    return _Corpus(json.dumps({name: {"tenant": "default", "kind": "folder", "path": str(folder)}}), folder, "default")


def _readable(folder: Path) -> Path:
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise CorpusMissing(path=folder, why=f"{error.strerror or error}.") from None
    return folder.resolve()


def _port(preferred: int) -> int:
    return next(free_ports(preferred, preferred), None) or next(free_ports())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the state folder. Raises StateBusy."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise StateBusy(folder=folder, pid=lock.read().strip() or "unknown") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextmanager
def _interruptible(console: Console) -> Iterator[None]:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; later ones cannot disturb the stopping."""

    def asked(number: int, _: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        console.print(f"{signal.Signals(number).name}: stopping beats, worker, embedder, servers")
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, asked)
    yield


def _follow_parent() -> None:
    """Ask ourselves to stop once our parent has gone: a killed `make` does not tell its children."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[int, int, int, int], None]]:
    """A progress bar: call it with documents done and in total, chunks, embeddings."""
    columns = (
        SpinnerColumn(),
        TextColumn("indexing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("documents  {task.fields[chunks]} chunks  {task.fields[embeddings]} embeddings"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("index", total=None, chunks=0, embeddings=0)
        yield lambda done, total, chunks, embeddings: bar.update(
            task, completed=done, total=total or None, chunks=chunks, embeddings=embeddings
        )
