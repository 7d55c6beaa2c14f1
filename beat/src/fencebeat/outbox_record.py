"""A message that waits in the outbox: everything that publishing it needs, as one JSON text.

It is what kombu's producer had in hand when it would have given the message to its channel: the encoded body, content
type, headers, properties, exchange, routing key, and the queues and exchanges to declare first. So it can be
published by another process, of another day, on any transport, and is the message Celery would have sent.

    {"version": 1, "scopes": [...], "entry", "fire_time", "task_id", "body", "base64": false, ...}

`scopes` is read by the scripts: where a stop holds the message back.

May import: kombu's entities and JSON. Must never know: connections, scripts, terms.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kombu import Exchange, Queue
from kombu.entity import binding
from kombu.utils.json import dumps, loads

from fencebeat.errors import UnreadableRow

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Message:
    """One tick's message. `body` is encoded; text and bytes are kept apart, as kombu's serializers made it."""

    entry: str
    fire_time: int  # microseconds since the epoch
    task_id: str
    scopes: tuple[str, ...]
    body: str | bytes
    content_type: str
    content_encoding: str
    priority: int | None
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str
    declare: tuple[Mapping[str, Any], ...] = field(default=())

    def to_json(self) -> str:
        """The row's text. Raises TypeError (kombu's EncodeError) for a header that has no JSON."""
        binary = isinstance(self.body, bytes)
        return str(
            dumps(
                {
                    **self.__dict__,
                    "version": VERSION,
                    "body": base64.b64encode(self.body).decode() if isinstance(self.body, bytes) else self.body,
                    "base64": binary,
                }
            )
        )

    @classmethod
    def from_json(cls, row: str, text: str) -> Self:
        """Read a row. `row` is its id, for the error. Raises UnreadableRow."""
        try:
            facts = loads(text)
            if facts.pop("version") != VERSION:
                raise UnreadableRow(row=row, why="another version of fencebeat wrote it")
            if facts.pop("base64"):
                facts["body"] = base64.b64decode(facts["body"], validate=True)
            return cls(
                **{**facts, "scopes": tuple(facts["scopes"]), "declare": tuple(facts["declare"])},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableRow(row=row, why=f"{type(error).__name__}: {error}") from error


def described(entities: Sequence[Exchange | Queue]) -> tuple[Mapping[str, Any], ...]:
    """Queues and exchanges as JSON values; `entity` makes them again."""
    return tuple(_described(entity) for entity in entities)


def _described(entity: Exchange | Queue) -> Mapping[str, Any]:
    if isinstance(entity, Exchange):
        return {"kind": "exchange", **_without_none(entity.as_dict())}
    facts = _without_none(entity.as_dict())
    facts["exchange"] = _without_none(entity.exchange.as_dict()) if entity.exchange is not None else None
    bindings = [
        {**_without_none(bound.as_dict()), "exchange": _without_none(bound.exchange.as_dict())}
        for bound in entity.bindings or ()
    ]
    facts["bindings"] = sorted(bindings, key=dumps)  # kombu keeps a set; rows must be equal in every process
    return {"kind": "queue", **_without_none({name: facts.get(name) for name, _ in Queue.attrs})}


def _without_none(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def entity(facts: Mapping[str, Any]) -> Exchange | Queue:
    """The queue or exchange that `described` wrote. Raises KeyError or TypeError for something else."""
    given = dict(facts)
    if given.pop("kind") == "exchange":
        return Exchange(**given)
    if "exchange" in given:
        given["exchange"] = Exchange(**given["exchange"])
    given["bindings"] = [binding(**{**one, "exchange": Exchange(**one["exchange"])}) for one in given["bindings"]]
    return Queue(**given)
