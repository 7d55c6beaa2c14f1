"""How the status page looks: HTML made of values, every one of them escaped. No template, no script, no request."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from ops.status import Status

_STYLE = """:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0 1rem}
main{max-width:60rem;margin:auto}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem;
border-bottom:1px solid #8886}.ok{color:#1a7f37}.degraded{color:#c9510c}.problems{border-left:4px solid #c9510c}"""

_EXCERPT = 300  # characters of a hit


def page(status: Status, text: str, tenant: str, found: str) -> str:
    """The whole page. found: HTML of an answered search; without one the page reloads itself every 5 s."""
    word = "degraded" if status.degraded else "ok"
    entries = [
        (entry.name, moment(entry.last), moment(entry.next), f"{entry.late_seconds:.1f} s", entry.kept)
        for entry in status.entries
    ]
    targets = [
        (t.target_id, t.indexed, t.dirty, t.dead, t.chunks, f"{t.oldest_dirty_seconds:.0f} s") for t in status.targets
    ]
    parts = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "" if text else "<meta http-equiv=refresh content=5>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>fencebeat: {word}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>fencebeat: <span class={word}>{word}</span></h1>",
        f"<p><small>{moment(status.at)}. <a href=status.json>JSON</a> <a href=metrics>metrics</a></small></p>",
        _problems(status),
        "<h2>Who leads</h2>",
        _leader(status),
        "<h2>Schedule</h2>",
        _notes(status),
        _table(("entry", "last", "next", "late", "kept back"), entries),
        "<h2>Documents</h2>",
        _table(("target", "indexed", "dirty", "dead", "chunks", "oldest edit waits"), targets),
        "<h2>Search</h2><form method=get>",
        f'<label>Text <input name=q value="{escape(text, quote=True)}"></label> ',
        f'<label>Tenant <input name=tenant value="{escape(tenant or "default", quote=True)}"></label> ',
        "<button>Search</button></form>",
        found,
        "</main></body></html>",
    )
    return "\n".join(parts)


def alert(sentence: str) -> str:
    """A sentence that must be read."""
    return f"<p role=alert>{escape(sentence)}</p>"


def hits(answer: Mapping[str, Any]) -> str:
    """The answer of `ops.searching.answer_search`."""
    rows = [
        f"<li><b>{escape(str(hit['title'] or hit['doc_uid']))}</b> <small>{escape(str(hit['doc_uid']))}"
        f" [{hit['start']}-{hit['end']}]</small><br>{escape(str(hit['text'])[:_EXCERPT])}</li>"
        for hit in answer["hits"]
    ]
    partial = alert(f"Partial: {answer['reason']}") if answer["partial"] else ""
    return partial + (f"<ol>{''.join(rows)}</ol>" if rows else "<p>Nothing found.</p>")


def moment(seconds: float | None) -> str:
    """A time as text; `-` for none."""
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _problems(status: Status) -> str:
    items = "".join(f"<li>{escape(p.says)} <small>since {moment(p.since)}</small></li>" for p in status.problems)
    return f"<ul class=problems>{items}</ul>" if items else ""


def _notes(status: Status) -> str:
    return "".join(f"<p>{escape(note)}</p>" for note in status.notes())


def _leader(status: Status) -> str:
    if status.leader is None:
        return "<p>Nobody.</p>"
    left = status.leader.lease_left_seconds
    trust = "" if left is None else f", lease for another {left:.1f} s"
    who = f"{escape(status.leader.holder)} since {moment(status.leader.since)}"
    return f"<p>{who}, token {status.leader.token}{trust}.</p>"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
