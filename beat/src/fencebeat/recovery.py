"""What a new term does before its first commit: make sure that the store knows its past, and seed the flags.

    look ──▶ known ─────────────────────────────────────────────────────────────────▶ flags renewed ──▶ leading
      │                                                                                    ▲
      └──▶ unknown ──▶ past read from the effect store ──▶ pages written ──▶ generations ──┘

A store without a generation in entries, marks or flags is unknown: it lost its past, or never had one. Nothing is
emitted while it is. Everything is written in the elector's thread, under the new term; each step names it. The past is
read in a thread of its own, so that the elector's can keep the lease.

With an effect store   marks, definitions, pauses and flags come from its copies; what was emitted and may have been on
                       the lost queue is due again (its mark lies below it) or recorded as a `gap` of its entry. What
                       was not copied in the last second is due again.
It does not answer     whatever it raised gives the term back without a signal; see `elector`.
Without one            entries count as new from the store's time; a `gap` is recorded where anything shows that there
                       was a past; flags come from what this process last read (`flagmemory`).
Ended in the middle    the store is still unknown, for the generations come last: the next term begins again.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import redis

from fencebeat.clock import SystemClock
from fencebeat.effects import EffectStore, Flag, Past
from fencebeat.entries import RESERVED
from fencebeat.errors import Fenced, Retryable
from fencebeat.failpoints import failpoint
from fencebeat.flagmemory import FlagMemory
from fencebeat.flags import FlagKeeper
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, Term
from fencebeat.scripts import asking, script

log = logging.getLogger(__name__)

PAGE = 500
"""Entries in one step: with a definition and a mark each, about 3 ms of the server's time."""
RENEW = 10
"""Pages after which the lease is renewed."""
READ_MOST = 300.0
"""Seconds for which the lease is kept while the past is read: enough for some ten million open ticks."""


@dataclass(frozen=True)
class _Look:
    """What an unknown store still has, by its own generations, and its time in microseconds."""

    now: int
    entries: bool
    last: bool
    flags: bool


@dataclass(frozen=True)
class _Seed:
    """The flags to begin with. lost: text of the record that says that they were lost; empty: they were not."""

    generation: int
    flags: dict[str, Flag] = field(default_factory=dict)
    lost: str = ""


class PastUnread(Retryable):
    """The effect store did not give the past within {seconds} s, so nothing is emitted yet.

    It is asked again, by this beat or another. Look what its server is busy with: a recovery reads what is not settled.
    """


class Recovery:
    """Prepares a term; give it to the elector as `prepare`.

    client: its own, answers are text. carrier: the lock's (see `lease.Carrier`). renew: extends the lease of a term
    (the lock's `renew`), so that a long recovery keeps it; False: the term is over. memory: flags as last read, where
    there is no effect store.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        carrier: Carrier,
        effects: EffectStore | None = None,
        keeper: FlagKeeper | None = None,
        memory: FlagMemory | None = None,
        renew: Callable[[Term], bool] | None = None,
    ) -> None:
        self._client, self._keys, self._carrier = client, keys, carrier
        self._effects, self._keeper, self._memory, self._renew = effects, keeper, memory, renew
        self._clock = SystemClock()
        self._knew = False  # this process saw the store with its past

    def __call__(self, term: Term) -> None:
        """Raises Fenced when the term is over, StoreUnreachable, and whatever the effect store raises."""
        look = self._look(term)
        if look is not None:
            self._recover(term, look)
        self._knew = True
        if self._keeper is not None:
            self._keeper.seed()

    def _look(self, term: Term) -> _Look | None:
        answer = self._step(term, "look")
        if answer[0] == "known":
            return None
        entries, last, flags = (known == "1" for known in answer[2:5])
        return _Look(int(answer[1]), entries, last, flags)

    def _recover(self, term: Term, look: _Look) -> None:
        """Write what is known of the past, in pages, the generations last."""
        floor, past, seed = self._read(term, look)
        self._keep_lease(term)
        begun: dict[str, int] = {}
        if not look.last:  # an entry of which nobody knows a mark is new
            names = (*past.entries, *self._left_behind())
            begun = dict.fromkeys((name for name in names if name not in past.marks), look.now)
        pages = _requests(past, begun)
        for number, page in enumerate(pages, 1):
            failpoint("beat.page.before")
            self._step(term, "page", *page)
            failpoint("beat.page.after")
            if number % RENEW == 0:
                self._keep_lease(term)
        lost = sum(gap.count for gap in past.gaps)
        knew = self._knew or floor > 0 or bool(past.marks or past.entries)
        [outcome] = self._step(
            term,
            "done",
            *(int(knew), look.now, len(past.marks), lost, seed.lost, seed.generation),
            *(part for scope, flag in seed.flags.items() for part in (scope, flag.to_json())),
        )
        if outcome == "gap":
            log.error(
                "the store lost its past; %s",
                _told(past, lost) if self._effects else "entries count as new from now on",
            )
        if seed.lost and not look.flags:
            log.error("the flags were lost: %s", seed.lost)

    def _read(self, term: Term, look: _Look) -> tuple[int, Past, _Seed]:
        """What `_known` gives, the lease kept meanwhile.

        A past that takes longer to read than a lease lasts would else end every term, and no beat could ever lead. A
        store that does not answer at all must not keep the others from trying: hence the end.
        """
        reading: Future[tuple[int, Past, _Seed]] = Future()

        def read() -> None:
            try:
                reading.set_result(self._known(look))
            except BaseException as error:  # noqa: BLE001 - it is raised again by `result`, in the elector's thread
                reading.set_exception(error)

        threading.Thread(target=read, name="fencebeat-past", daemon=True).start()
        end = self._clock.elapsed() + READ_MOST
        while not wait([reading], timeout=term.lease / 3).done:
            if self._clock.elapsed() >= end:
                raise PastUnread(seconds=READ_MOST)
            self._keep_lease(term)
        return reading.result()

    def _known(self, look: _Look) -> tuple[int, Past, _Seed]:
        """The floor, the past and the flags, from the effect store or from this process's memory."""
        if self._effects is not None:
            generation, flags = self._effects.flags()
            return self._effects.floor(), self._effects.past(), _Seed(generation, dict(flags))
        if self._memory is None:
            return 0, Past(), _Seed(1)
        generation, flags, lost = self._memory.seed(known_past=self._knew or look.entries or look.last)
        return 0, Past(), _Seed(generation, dict(flags), lost)

    def _left_behind(self) -> list[str]:
        """Entries whose definitions survived; some of them may have no mark any more."""
        with asking(self._client):
            names: Any = self._client.hkeys(self._keys.entries)
        return [name for name in names if name != RESERVED]

    def _keep_lease(self, term: Term) -> None:
        if self._renew is not None and not self._renew(term):
            raise Fenced(token=term.token, newest="another term")

    def _step(self, term: Term, step: str, *args: Any) -> list[str]:
        keys = self._keys
        answer: list[str] = script("recover")(
            self._client,
            (keys.lock, keys.term, keys.entries, keys.last, keys.flags, keys.audit, keys.paused),
            (term.token, term.nonce, self._carrier, step, *args),
        )
        if answer[0] == "fenced":
            raise Fenced(token=term.token, newest=answer[1] or "none")
        return answer


def _told(past: Past, lost: int) -> str:
    return (
        f"recovered from the effect store: {len(past.marks)} marks, {len(past.entries)} definitions;"
        f" {lost} ticks of unguarded tasks may have been lost (fencebeat schedule gaps)"
    )


def _requests(past: Past, begun: Mapping[str, int]) -> Iterator[list[Any]]:
    """The pages of a recovery, each the arguments of one step: five counts, then the rows of one kind.

    begun: marks of entries that count as new. They are told to the audit, as of any new entry: at the next loss nothing
    else may be known of one that was never due in between.
    """
    gaps = [(gap.entry, gap.first, gap.fire_time, gap.count, gap.task_id) for gap in past.gaps]
    kinds: list[Sequence[tuple[Any, ...]]] = [
        list(past.entries.items()),
        list(past.marks.items()),
        list(past.paused.items()),
        gaps,
        list(begun.items()),
    ]
    for place, rows in enumerate(kinds):
        for first in range(0, len(rows), PAGE):
            page = rows[first : first + PAGE]
            counts = [0] * len(kinds)
            counts[place] = len(page)
            yield [*counts, *(value for row in page for value in row)]
