"""One message without what differs from tick to tick: cut from a full render, filled for each tick. Pure functions.

Slots: the task id (id, root_id, correlation_id), the four `fencebeat_` headers, traceparent, relative eta and expires,
body, argsrepr, kwargsrepr, delivery_tag (random: equal ones would collide among unacknowledged messages). A row of the
outbox has no delivery_tag; it has the tick, its scope and its message id beside them.

May import: kombu's JSON, Celery's saferepr, capture, entries, ticks. Must never know: applications, clocks, brokers.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple
from uuid import uuid4

from celery.utils.saferepr import saferepr
from kombu import serialization
from kombu.utils.json import dumps

from fencebeat.capture import Captured, Command
from fencebeat.entries import EXTRA, Entry
from fencebeat.ticks import tick_id, traceparent

SHORT = 100
"""Characters of a representation that is taken for short."""


class Unfit(Exception):
    """An answer, not an error: this entry stays on Celery's own path."""


class Filling(NamedTuple):
    """What makes one message of a template: the tick, and the moments it asks for as JSON (empty: it has none)."""

    fire_time: int
    token: int
    identity: str
    tag: str
    eta: str
    expires: str


@dataclass(frozen=True, slots=True)
class Pieces:
    """What an entry's arguments become in its messages, as JSON."""

    entry: Entry
    key: str
    name: str
    body: str  # without its third part
    argsrepr: str
    kwargsrepr: str


@dataclass(slots=True)
class Template:
    """A template. Each command: its name, its key, its text with %s for the slots, the slots in order."""

    made: float
    commands: tuple[tuple[Any, str, str, tuple[str, ...]], ...]
    queues: tuple[str, ...]
    embed: str  # the third part of the body, JSON
    row: bool  # a row of the outbox: its body stands there as it is
    message_id: str  # of rows: as the options give it, empty where it is the task id
    eta: float | None  # seconds from now
    expires: float | None
    proven_by: str  # the entry whose renders it was made from
    shared: bool = False  # another entry has proven it, too

    def fill(self, pieces: Pieces, filling: Filling) -> Captured:
        """The message of one tick."""
        values = self.values(pieces, filling)
        commands = [
            Command(name, key, text % tuple([values[slot] for slot in slots]) if slots else text)
            for name, key, text, slots in self.commands
        ]
        message_id = (self.message_id or filling.identity) if self.row else filling.tag
        return Captured(commands, list(self.queues), message_id)

    def values(self, pieces: Pieces, filling: Filling) -> dict[str, str]:
        """What stands in each slot, as JSON."""
        name = pieces.entry.name
        return {
            "id": f'"{filling.identity}"',
            "entry": pieces.name,
            "scope": encode_basestring_ascii(scope_of(name)) if self.row else "",
            "tick": pieces.name[:-1] + tick_id(name, filling.fire_time)[len(name) :] + '"',
            "fire_time": str(filling.fire_time),
            "token": str(filling.token),
            "traceparent": f'"{traceparent(filling.identity)}"',
            "argsrepr": pieces.argsrepr,
            "kwargsrepr": pieces.kwargsrepr,
            "body": self._body(pieces),
            "tag": f'"{filling.tag}"',
            "eta": filling.eta,
            "expires": filling.expires,
        }

    def _body(self, pieces: Pieces) -> str:
        text = f"{pieces.body}, {self.embed}]"
        return encode_basestring_ascii(text) if self.row else f'"{base64.b64encode(text.encode()).decode()}"'


def scope_of(entry: str) -> str:
    """The scope under which a stop holds the messages of an entry back; of an extra run, too."""
    return f"entry:{entry.removesuffix(EXTRA)}"


def key_of(entry: Entry) -> str:
    """What a template belongs to: task and options where they are plain JSON, else the entry itself in its version."""
    if _plain(entry.options):
        return f"{entry.task} {entry.options!r}"  # it tells 1, 1.0 and True apart, which a tuple would not
    return f"{entry.task} {entry.name!r} {entry.version}"


def representation(value: Any, most: int, levels: int) -> str:
    """What Celery's `saferepr` makes of arguments, as JSON; for plain short ones in a tenth of the time."""
    values = value.values() if isinstance(value, dict) else value
    keys = value if isinstance(value, dict) else ()
    if all(_short(one) for one in values) and all(_short(one) for one in keys):
        text = repr(value)
        if len(text) < min(SHORT, most):
            return encode_basestring_ascii(text)
    return encode_basestring_ascii(saferepr(value, most, maxlevels=levels))


def _short(value: Any) -> bool:
    """Whether `saferepr` writes it as `repr` does: a whole number, nothing, or plain letters and digits."""
    return type(value) is int or value is None or (type(value) is str and value.isascii() and value.isalnum())


def _plain(value: Any) -> bool:
    """Whether JSON says all there is to a value."""
    if isinstance(value, Mapping):
        return all(type(key) is str and _plain(inner) for key, inner in value.items())
    return value is None or type(value) in (str, int, float, bool)


def body_of(args: Any, kwargs: Any) -> str:
    """The body without its third part and the closing bracket, as Celery's serializer writes it. Raises Unfit."""
    kind, encoding, text = serialization.dumps((args, kwargs), serializer="json")
    if kind != "application/json" or encoding != "utf-8" or not isinstance(text, str) or text[-1] != "]":
        raise Unfit
    return text[:-1]


def is_row(captured: Captured) -> bool:
    """Whether this message is a row of the outbox."""
    return any(command.name == "xadd" for command in captured.commands)


def embed_of(captured: Captured) -> str:
    """The third part of the body (callbacks, chain, chord), as it stands there.

    Raises Unfit for a message that is put where the broker decides, or encoded in another way.
    """
    texts = {command.value for command in captured.commands if command.name != "pexpire"}
    names = {command.name for command in captured.commands}
    if len(texts) != 1:
        raise Unfit
    message: dict[str, Any] = json.loads(texts.pop())
    if is_row(captured):
        if message["exchange"] != "" or message["base64"] or message["content_type"] != "application/json":
            raise Unfit
        return dumps(json.loads(message["body"])[2])
    if "lpush" in names and message["properties"]["delivery_info"]["exchange"] != "":
        raise Unfit  # which queues are bound to an exchange is the broker's to say, each time
    if message["properties"].get("body_encoding") != "base64":
        raise Unfit
    return dumps(json.loads(base64.b64decode(message["body"]))[2])


def cut(command: Command, values: Mapping[str, str]) -> tuple[Any, str, str, tuple[str, ...]]:
    """The command's text with %s for each slot that has its value there, and the slots in their order."""
    if command.name == "pexpire":
        return command.name, command.key, command.value, ()
    message = json.loads(command.value)
    headers, properties = message["headers"], message["properties"]
    mark = uuid4().hex
    places: list[tuple[Any, Any, str]] = [
        (headers, "id", "id"),
        (headers, "root_id", "id"),
        (properties, "correlation_id", "id"),
        (headers, "fencebeat_tick", "tick"),
        (headers, "fencebeat_entry", "entry"),
        (headers, "fencebeat_fire_time", "fire_time"),
        (headers, "fencebeat_token", "token"),
        (headers, "traceparent", "traceparent"),
        (headers, "argsrepr", "argsrepr"),
        (headers, "kwargsrepr", "kwargsrepr"),
        (headers, "eta", "eta"),
        (headers, "expires", "expires"),
        (message, "body", "body"),
        (properties, "delivery_tag", "tag"),
    ]
    if command.name == "xadd":
        places += [(message, "entry", "entry"), (message, "fire_time", "fire_time"), (message, "task_id", "id")]
        places += [(message["scopes"], 1, "scope"), (properties, "message_id", "id")]
    for where, field, slot in places:
        value = where[field] if isinstance(where, list) else where.get(field)
        if values[slot] and dumps(value) == values[slot]:  # another value is the options' own: it stays
            where[field] = f"{mark}{slot}."
    literals = dumps(message).replace("%", "%%").split(f'"{mark}')
    slots = [part.split('."', 1) for part in literals[1:]]
    text = literals[0] + "".join(f"%s{rest}" for _, rest in slots)
    return command.name, command.key, text, tuple(slot for slot, _ in slots)
