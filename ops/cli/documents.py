"""Commands about documents: sync, search, doctor, migrate."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ops.cli.answers import AsJson, Exit, answer, application, err, examples, leave, quiet_logs

if TYPE_CHECKING:  # see ops.cli.answers
    from tasks.wiring import Services

WAIT_SECONDS = 3600.0  # a first build of some 50,000 chunks on two cores
LOOK_SECONDS = 0.3


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("sync", epilog=examples("fencebeat sync", "fencebeat sync docs --approve"))(sync)
    app.command("search", epilog=examples('fencebeat search "stop everything" --tenant default --limit 3'))(search)
    app.command("doctor", epilog=examples("fencebeat doctor", "fencebeat doctor --tenant acme --json"))(doctor)
    app.command("migrate", epilog=examples("POSTGRES_URL=postgresql://owner@db/fencebeat fencebeat migrate"))(migrate)


def sync(
    source: Annotated[
        str | None, typer.Argument(help="Name of a source in FENCEBEAT_SOURCES; all without one.")
    ] = None,
    *,
    approve: Annotated[bool, typer.Option(help="Also delete what an unusually small listing would delete.")] = False,
    wait: Annotated[bool, typer.Option(help="Return only when every document is up to date.")] = True,
    as_json: AsJson = False,
) -> None:
    """List sources, mark what differs, and wait until workers have brought it up to date."""
    from ops.errors import NoSources  # noqa: PLC0415 - see ops.cli
    from tasks.indexing import wake_up  # noqa: PLC0415 - see ops.cli

    with application() as made:
        names = [source] if source else sorted(made.sources)
        if not names:
            raise NoSources
        reports = [made.sync(name, approve=approve) for name in names]
        wake_up(made.ledger.progress(made.spec.target_id))
        left = _wait(made) if wait else made.ledger.progress(made.spec.target_id).dirty
        complete = all(report.complete for report in reports)
        waiting = sum(report.pending_deletes for report in reports)
        dead = made.ledger.progress(made.spec.target_id).dead

    def text(console: Console) -> None:
        for report in reports:
            console.print(
                f"{report.source_id}: {report.listed} documents listed, {report.marked} marked,"
                f" {report.absent} to be deleted"
            )
            for place, reason in report.problems:
                console.print(f"  not listed: {place}: {reason}", style="yellow", markup=False)
            if not report.complete:
                says = "  The listing is not complete, so nothing was deleted. Mend what is named and sync again."
                console.print(says, style="yellow", soft_wrap=True)
        if waiting:
            console.print(
                f"{waiting} deletions wait for approval: look at the source, then add --approve", style="yellow"
            )
        if dead:
            console.print(
                f"{dead} documents failed for good; their old versions stay: fencebeat status", style="yellow"
            )
        console.print(f"{left} documents are still waiting for a worker" if left else "what was listed is up to date")

    data: dict[str, Any] = {
        "sources": [report.as_dict() for report in reports],
        "waiting_documents": left,
        "dead_letters": dead,
    }
    answer(data, as_json, text)
    leave(Exit.DEGRADED if not complete or waiting or (wait and left) else Exit.OK)


def _wait(made: "Services") -> int:
    """Show how the documents come up to date; returns how many are left (0, or some after WAIT_SECONDS)."""
    import time  # noqa: PLC0415 - only while waiting

    target_id = made.spec.target_id
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = made.clock.elapsed()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        left = made.ledger.progress(target_id).dirty
        task = bar.add_task("indexing", total=left)
        while left and made.clock.elapsed() - began < WAIT_SECONDS:
            if not made.reader.permits("write", ("all",)):
                break
            time.sleep(LOOK_SECONDS)
            now = made.ledger.progress(target_id).dirty
            total = max(bar.tasks[task].total or 0, now)
            bar.update(task, total=total, completed=total - now)
            left = now
    return left


def search(
    text: Annotated[str, typer.Argument(help="What to look for, in words.")],
    *,
    tenant: Annotated[str, typer.Option(help="Whose documents; nobody searches without one.")],
    limit: Annotated[int, typer.Option(min=1, max=100, help="Hits at most.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Search the index: words and meaning together, committed versions only."""
    from ops.searching import answer_search  # noqa: PLC0415 - see ops.cli

    with application() as made:
        found = answer_search(text, tenant, limit, made)

    def show(console: Console) -> None:
        for place, hit in enumerate(found["hits"], start=1):
            where = f"{hit['doc_uid']} [{hit['start']}-{hit['end']}]"
            console.print(f"[bold]{place}.[/] {_safe(hit['title'] or hit['doc_uid'])}  [dim]{_safe(where)}[/]")
            console.print(f"   {' '.join(hit['text'].split())[:300]}", markup=False)
        if not found["hits"]:
            console.print("nothing found")
        if found["partial"]:
            console.print(f"partial: {found['reason']}", style="yellow", markup=False)

    answer(found, as_json, show)
    leave(Exit.DEGRADED if found["partial"] else Exit.OK)


def _safe(text: str) -> str:
    from rich.markup import escape  # noqa: PLC0415 - only where somebody else's text meets markup

    return escape(text)


def doctor(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's documents.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Not in this version: it is refused.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the index with the ledger, chunk by chunk; changes nothing. Exits 1 when they differ."""
    from ops.errors import RepairNotYet  # noqa: PLC0415 - see ops.cli
    from ops.searching import check_tenant  # noqa: PLC0415 - see ops.cli

    if repair:
        raise RepairNotYet
    with application() as made:
        if tenant is not None:
            check_tenant(made, tenant)
        with err.status("comparing the index with the ledger"):
            report = made.examine(tenant)

    def text(console: Console) -> None:
        console.print(f"{report.documents} documents, {report.chunks} chunks, {report.tombstones} tombstones compared")
        for kind, count in report.counts.items():
            if count:
                console.print(f"  {kind}: {count}, for example {report.examples[kind][0]}", style="red", markup=False)
        if not report.at_rest:
            console.print(f"  {report.open_documents} documents are on their way and were not judged", style="yellow")
        console.print(f"{report.differences} differences")

    answer(report.as_dict(), as_json, text)
    leave(Exit.FAILED if report.differences else Exit.OK)


def migrate(*, as_json: AsJson = False) -> None:
    """Bring the ledger's schema to this version. Safe to run again, and by several at once."""
    from config.settings import settings  # noqa: PLC0415 - see ops.cli
    from index.ledger.migrate import upgrade  # noqa: PLC0415 - see ops.cli

    quiet_logs()
    revision = upgrade(settings().postgres_url)
    answer({"revision": revision}, as_json, lambda console: console.print(f"the ledger is at revision {revision}"))
