"""The errors of fencebeat. An exception's docstring is its message, so text and documentation cannot drift apart.

The type says what to do: `Retryable` (again later), `Permanent` (never again for this input), `Fenced` (stop acting),
`Refused` (nothing was done; change the request or the configuration).
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Self


class FencebeatError(Exception):
    """Something failed that nobody has named yet."""

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        template = inspect.cleandoc(type(self).__doc__ or type(self).__name__)
        super().__init__(template.format(**facts))

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """Celery pickles exceptions; the default cannot pass keywords."""
        return partial(type(self), **self.facts), ()

    @property
    def what(self) -> str:
        """First line of the message: what happened."""
        return str(self).split("\n", 1)[0]

    def as_dict(self) -> dict[str, Any]:
        """The error for `--json`: type, message and facts as text."""
        return {
            "error": type(self).__name__,
            "message": str(self),
            "facts": {name: str(value) for name, value in self.facts.items()},
        }


class Retryable(FencebeatError):
    """A passing fault: the same call may succeed later."""


class Permanent(FencebeatError):
    """This input can never succeed as it is; it changes or it stays a dead letter."""


class Fenced(FencebeatError):
    """Term {token} is over: the store has sealed {newest}. Stop acting; do not retry."""


class Refused(FencebeatError):
    """Nothing was done: {why}"""


class ImpossibleConfiguration(Refused):
    """The configuration cannot work, so nothing was started: {rules}"""


class UnusableRecord(Refused):
    """Nothing was done: the store's record {key} cannot be used ({found}).
    Another program wrote it, or it was damaged. Look at it, and delete it if nobody needs it: it is made anew.
    """


class StoreUnreachable(Retryable):
    """{store} did not answer within {seconds} s: {why}
    Nothing was assumed or changed. Check that the server runs and that its address ({address}) is right.
    """


class UnusableEntry(ImpossibleConfiguration):
    """Entry {name} cannot be scheduled: {why}
    The other entries are not affected. Correct it where it is written: in beat_schedule (then start the beat again),
    or with `fencebeat schedule edit`.
    """


class UnknownEntry(FencebeatError):
    """There is no entry {name}.
    Nothing was done. `fencebeat schedule list` shows the entries there are.
    """


class EntryExists(Refused):
    """Nothing was done: there is an entry {name} already.
    Use another name, or change it: `fencebeat schedule edit {name}`.
    """


class StaticEntry(Refused):
    """Nothing was done: entry {name} comes from beat_schedule, and the next leader would write it back.
    Change it there and restart the beats. To stop it now: `fencebeat schedule pause {name}`.
    """


class ClocksDiffer(Refused):
    """Nothing was done: this host's clock and the store's differ by {seconds:.1f} s.
    Set both clocks by NTP, then try again: a change counts from the time at which it is made.
    """


class EntryMoves(Retryable):
    """Nothing was done: entry {name} went on changing while it was edited ({attempts} attempts).
    Somebody else may be editing it. Look at it (`fencebeat schedule show {name}`), then try again.
    """


class FiresTooOften(Permanent):
    """Entry {name} would be emitted more often than it fires: its tick of {fire_time} us was emitted in this term.
    Its mark in the store was set back more than once. The other entries go on; look at who writes to the store.
    """


class NobodyLeads(FencebeatError):
    """Nobody leads, so there is no term to end.
    Nothing was done. `fencebeat leader show` tells more.
    """


class TooMany(Refused):
    """Nothing was done: entry {name} has more than {limit} fire times in that range.
    Ask for a shorter range, or allow more of them with --limit.
    """


class UncapturedWrite(Permanent):
    """Publishing tried to write {command} {key} to the broker by itself.
    Nothing was sent: only the commit script may put messages on a queue. Look for a patched channel.
    """


class StoreUnknown(Retryable):
    """The store does not know its past, so nothing was emitted: {record}: {why}
    It may have lost its data. The next leader recovers what can be known; this needs no action if it passes.
    """


class OverlapUnknown(Retryable):
    """Nobody can tell whether the last tick of {name} is still under way, so the next one waits: {why}
    It stays due. Look at the store that fencebeat_claims names.
    """


class NoPast(StoreUnknown):
    """Nothing was done: {record} has no generation, so there is no past to count from.
    No beat has led here yet, or the store lost its data. Start a beat (`celery -A proj beat -S fencebeat`), which
    makes or recovers it, then try again.
    """


class ClockRefused(Retryable):
    """This host's clock is ahead of the store's time ({server} us), so nothing was emitted.
    Set both clocks by NTP; this process leads again when they agree.
    """


class ClockJumped(FencebeatError):
    """The store's clock went forward by {days:.1f} days at once, so nothing is emitted.
    If the new time is wrong, set it right: emission goes on. If it is right, restart the beats to accept it.
    """


class UnreadableRow(Permanent):
    """Row {row} of the outbox cannot be read: {why}
    It stays where it is and is not published; the others are. Look at it (XRANGE), and delete it if nobody needs it.
    """


class BrokerGone(Retryable):
    """The broker does not take messages: {why}
    What is due stays in the outbox and is published later, under the same ids. Check that it runs ({address}).
    """


class OutboxFull(Retryable):
    """{rows} messages wait in the outbox, as many as may (fencebeat_outbox_limit), so nothing more is emitted.
    Due ticks stay due. Look why nothing is published: is the broker down, or a stop in force? `fencebeat outbox`
    """


class ClaimLost(Fenced):
    """The tick {task_id} is no longer claimed by attempt {attempt}: another attempt has taken it over.
    Roll the transaction back: its effect belongs to that attempt. This message is tried again later.
    """


class NoTransaction(Refused):
    """Nothing was done: closing tick {task_id} needs an open transaction, and this connection is in autocommit.
    Begin a transaction first, write the effect in it, close the tick in it, then commit.
    """


class NotInPostgres(Refused):
    """Nothing was done: the claim of tick {task_id} is not in Postgres, so it cannot close in a transaction.
    Set fencebeat_claims to the Postgres that the effect is written to, or leave the closing to the guard.
    """


class NothingToInstall(Refused):
    """Nothing was done: {store} needs no table. Only claims in Postgres do (fencebeat_claims)."""


class NoApplication(Refused):
    """No Celery application can be read: {why}
    Name it: `fencebeat -A proj ...`, or FENCEBEAT_APP=proj; the same name as for `celery -A`.
    """


class StopsLiveElsewhere(Refused):
    """Nothing was done: this project's stops live in its effect store, which would undo it within a second.
    Use the command of that application (`fencebeat kill`, where it is fencebeat-index).
    """
