"""A store with a term and a generation made by hand, for tests of the scripts without an elector."""

import json
from dataclasses import dataclass, replace

import redis

from fencebeat.capture import Captured, Command
from fencebeat.entries import Entry, entry_of
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, Term
from fencebeat.schedule_memory import ScheduleMemory
from fencebeat.store import Emission, Store

SECOND = 1_000_000


@dataclass
class Fence:
    """One namespace: its keys, a term that the store has sealed, and the store's face."""

    client: redis.Redis  # answers are text
    keys: Keys
    term: Term
    store: Store

    @classmethod
    def sealed(cls, client: redis.Redis, namespace: str, carrier: Carrier = "lock") -> "Fence":
        keys = Keys(namespace)
        fence = cls(client, keys, Term(100, "nonce-100", "host:1", 5.0), Store(client, keys, carrier=carrier))
        fence.seal(fence.term)
        for record in (keys.entries, keys.last, keys.flags):
            client.hset(record, "generation", 1)
        return fence

    def seal(self, term: Term) -> None:
        """Make `term` the store's term, as acquire does."""
        self.client.set(self.keys.lock, term.nonce, px=5000)
        self.client.hset(self.keys.term, mapping={"token": term.token, "nonce": term.nonce, "holder": term.holder})

    def successor(self) -> Term:
        """Another term takes over."""
        newer = replace(self.term, token=self.term.token + 1, nonce="nonce-101", holder="host:2")
        self.seal(newer)
        return newer

    def now(self) -> int:
        """The server's time in microseconds."""
        seconds, rest = self.client.time()
        return seconds * SECOND + rest

    def entry(self, name: str = "e", *, mark: int = 0, **line: object) -> Entry:
        """Store an entry with a mark, due since then."""
        entry = entry_of(name, {"task": "t", "schedule": 1.0, **line})
        self.client.hset(self.keys.entries, name, entry.definition)
        self.client.hset(self.keys.last, name, mark)
        self.client.zadd(self.keys.due, {name: (entry.next_after(mark) or 0) // 1000})
        return entry

    def emission(self, entry: Entry, fire_time: int, queue: str = "q", **changes: object) -> Emission:
        """A tick with one message, as the renderer makes it."""
        message = Captured(
            commands=[Command("lpush", queue, json.dumps({"tick": [entry.name, fire_time]}))],
            queues=[queue],
            message_id=f"m-{entry.name}-{fire_time}",
        )
        tick = Emission(
            entry=entry.name,
            version=entry.version,
            fire_time=fire_time,
            following=entry.next_after(fire_time),
            task_id=f"t-{entry.name}-{fire_time}",
            message=message,
        )
        return replace(tick, **changes)

    def commit(self, *decisions: object, term: Term | None = None, **options: object) -> tuple[str, ...]:
        """The outcomes of one commit, by a sender whose clock is right."""
        options.setdefault("sender_now", self.now())
        return self.store.commit(term or self.term, decisions, **options).outcomes

    def sync(self, *entries: Entry, term: Term | None = None) -> int:
        """Make the stored static entries these, at once; returns how many were removed."""
        synchroniser = self.store.synchroniser()
        memory = ScheduleMemory({entry.name: entry for entry in entries})
        for _ in synchroniser.synchronise(term or self.term, memory, complete=True):
            pass
        return synchroniser.removed

    def mark(self, name: str = "e") -> int:
        return int(self.client.hget(self.keys.last, name))

    def messages(self, queue: str = "q") -> list[list]:
        """Ticks on the queue, oldest first."""
        return [json.loads(text)["tick"] for text in reversed(self.client.lrange(queue, 0, -1))]

    def audit(self) -> list[dict[str, str]]:
        """Audit records, oldest first."""
        return [fields for _, fields in self.client.xrange(self.keys.audit)]

    def everything(self) -> dict[str, bytes]:
        """Every key of the database but the audit, as bytes: what must not change where nothing may."""
        return {key: self.client.dump(key) for key in self.client.scan_iter() if key != self.keys.audit}
