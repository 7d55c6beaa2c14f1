"""Commands that run something, or show what runs: up, embedder, page, status, smoke."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.cli.answers import AsJson, Exit, answer, err, examples, leave, quiet_logs

if TYPE_CHECKING:  # see ops.cli.answers
    from ops.status import Status

WATCH_SECONDS = 2.0


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("up", epilog=examples("fencebeat up", "fencebeat up --corpus docs --once"))(up)
    app.command("embedder", epilog=examples("EMBEDDER_URL=http://127.0.0.1:8901 fencebeat embedder"))(embedder)
    app.command("page", epilog=examples("fencebeat page --port 8600"))(page)
    app.command("status", epilog=examples("fencebeat status", "fencebeat status --watch"))(status)
    app.command("smoke", epilog=examples("fencebeat smoke rag-scheduled-job-leader-election-smoke"))(smoke)


def up(
    *,
    corpus: Annotated[
        Path | None, typer.Option(help="Folder to index; else FENCEBEAT_SOURCES, or our own docs.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End as soon as the index equals its sources.")] = False,
    state_dir: Annotated[Path | None, typer.Option(help="Data, logs, sockets; else .fencebeat here.")] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when the process that started this one is gone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run everything on this machine: servers, beats, worker, embedder, page; index a folder and answer a search."""
    from ops.up import up as run_everything  # noqa: PLC0415 - see ops.cli

    quiet_logs()
    code = run_everything(corpus, once=once, as_json=as_json, state_dir=state_dir, with_parent=with_parent)
    raise typer.Exit(code)


def embedder() -> None:
    """Serve the embedding model of this host over the OpenAI protocol, until it is stopped."""
    import os  # noqa: PLC0415 - see ops.cli

    from config.logging import configure  # noqa: PLC0415 - see ops.cli
    from config.settings import settings  # noqa: PLC0415 - see ops.cli
    from index.embedding.server import serve  # noqa: PLC0415 - see ops.cli

    given = settings()
    configure(given)
    given.state_dir.mkdir(parents=True, exist_ok=True)
    serve(
        given.embedder_address,
        given.model_path,
        given.state_dir / "embedder-calls.jsonl",
        api_key=os.environ.get("EMBEDDER_API_KEY"),
        batch_tokens=given.embed_batch_tokens,
    )


def page(
    *, port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")] = 8600
) -> None:
    """Serve the status page, /status.json, /healthz and /metrics on this host, until it is stopped."""
    from ops.page import serve  # noqa: PLC0415 - see ops.cli

    quiet_logs()
    serve(port, ready=lambda bound: typer.echo(f"http://127.0.0.1:{bound}/"))


def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 2 s, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether it works, what is late, and who leads. Exits 3 while anything is degraded."""
    from config.settings import settings  # noqa: PLC0415 - see ops.cli
    from ops.status import Observer  # noqa: PLC0415 - see ops.cli

    quiet_logs()
    observer = Observer(settings())
    try:
        if watch:
            _watch(observer.look, as_json)
            return
        seen = observer.look()
    finally:
        observer.close()
    answer(seen.as_dict(), as_json, lambda console: console.print(_shown(seen)))
    leave(Exit.DEGRADED if seen.degraded else Exit.OK)


def _watch(look: Callable[[], "Status"], as_json: bool) -> None:
    import time  # noqa: PLC0415 - only while watching

    from rich.live import Live  # noqa: PLC0415 - only while watching

    try:
        if as_json:  # a line each time, for a program that reads on
            while True:
                answer(look().as_dict(), as_json=True, text=lambda _: None)
                time.sleep(WATCH_SECONDS)
        with Live(_shown(look()), console=Console(), auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(_shown(look()), refresh=True)
    except KeyboardInterrupt:
        return


def _shown(seen: "Status") -> RenderableType:
    """The status as a terminal shows it: problems first."""
    parts: list[RenderableType] = [Text("degraded", "bold red") if seen.degraded else Text("ok", "bold green")]
    for problem in seen.problems:
        since = "" if problem.since is None else f" (since {_clock(problem.since)})"
        parts.append(Text(f"  {problem.says}{since}", "yellow"))
    if seen.leader is not None:
        left = seen.leader.lease_left_seconds
        trust = "" if left is None else f", lease for another {left:.1f} s"
        who = f"{seen.leader.holder} leads since {_clock(seen.leader.since)}, token {seen.leader.token}{trust}"
        parts.append(Text(who))
    parts.extend(Text(note, "yellow") for note in seen.notes())
    if seen.entries:
        table = Table("entry", "last", "next", "late", "", box=None)
        for entry in seen.entries:
            late = f"{entry.late_seconds:.1f} s" if entry.late_seconds else ""
            table.add_row(Text(entry.name), _clock(entry.last), _clock(entry.next), late, entry.kept)
        parts.append(table)
    if seen.targets:
        table = Table("target", "indexed", "dirty", "dead", "chunks", "oldest edit waits", box=None)
        for target in seen.targets:
            numbers = (target.indexed, target.dirty, target.dead, target.chunks)
            waits = f"{target.oldest_dirty_seconds:.0f} s"
            table.add_row(Text(target.target_id), *(str(number) for number in numbers), waits)
        parts.append(table)
    for queue, length in seen.queues.items():
        parts.append(Text(f"{length} messages in queue {queue}; the embedder is {seen.embedder}"))
    return Group(*parts)


def _clock(seconds: float | None) -> str:
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} UTC"


def smoke(
    name: Annotated[str, typer.Argument(help="Name of the run; a wrong one prints those there are.")],
    *,
    keep: Annotated[Path | None, typer.Option(help="Folder for logs and history; kept. Else temporary.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove the main promises here, on servers of its own, in about a minute."""
    from ops.smoke import run  # noqa: PLC0415 - see ops.cli

    quiet_logs()
    result = run(name, folder=keep, say=lambda line: err.print(line, markup=False, style="dim"))

    def text(console: Console) -> None:
        for fact, value in result.facts.items():
            console.print(f"  {fact}: {value}", markup=False)
        console.print(f"{name}: passed in {result.seconds:.0f} s")

    answer(result, as_json, text)
