"""What a new term does before its first commit: make sure that the store knows its past, and seed the flags.

A store without a generation in entries, marks and flags is unknown. Here it is treated as a first start or a lost past:
entries count as new from the store's TIME, a `gap` is recorded where anything shows that there was a past, and the
flags come from the effect store where there is one.
"""

import logging

import redis

from fencebeat.effects import EffectStore
from fencebeat.errors import Fenced
from fencebeat.flags import FlagKeeper
from fencebeat.keys import Keys
from fencebeat.lease import Carrier, Term
from fencebeat.scripts import script

log = logging.getLogger(__name__)


class Recovery:
    """Prepares a term; give it to the elector as `prepare`.

    `carrier`: the lock's (see `lease.Carrier`).
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        carrier: Carrier,
        effects: EffectStore | None = None,
        keeper: FlagKeeper | None = None,
    ) -> None:
        self._client, self._keys, self._carrier = client, keys, carrier
        self._effects, self._keeper = effects, keeper
        self._knew = False  # this process saw the store with its past

    def __call__(self, term: Term) -> None:
        """Raises Fenced when the term is over, StoreUnreachable, and whatever the effect store raises."""
        floor, generation, pairs = 0, 1, []
        if self._effects is not None:
            floor = self._effects.floor()
            generation, flags = self._effects.flags()
            pairs = [part for scope, flag in flags.items() for part in (scope, flag.to_json())]
        keys = self._keys
        answer, *facts = script("recover")(
            self._client,
            (keys.lock, keys.term, keys.entries, keys.last, keys.flags, keys.audit),
            (
                *(term.token, term.nonce, self._carrier, int(self._knew or floor > 0)),
                *(generation, 0, 0, len(pairs) // 2, *pairs),
            ),
        )
        if answer == "fenced":
            raise Fenced(token=term.token, newest=facts[0] or "none")
        if answer == "gap":
            log.error("the store lost its past: entries count as new from now on, and the gap is in the audit")
        self._knew = True
        if self._keeper is not None:
            self._keeper.seed()
