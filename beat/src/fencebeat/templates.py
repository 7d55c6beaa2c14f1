"""The fast path: messages from templates, each proven equal to what Celery's own path makes. Off by one setting.

    a full render, the clock held still ──▶ cut into literal parts and slots (`message_template`)
    a second full render of another tick, the clock an hour on ──▶ equal byte for byte to the filled template? ──▶ kept,
                                                                   else this entry stays on Celery's own path

A template belongs to (task, options); arguments have slots too. Its second entry proves it once more, with arguments of
its own. What renders cannot show is asked beforehand (`plainness`). Templates are dropped with a new version of their
entry, a change of the configuration, a fork, and by age.

May import: Celery, message_template, plainness. Must never know: terms, scripts, connections.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from json.encoder import encode_basestring_ascii
from numbers import Real
from sys import intern

from celery import Celery
from celery.beat import BeatLazyFunc, _evaluate_entry_args, _evaluate_entry_kwargs
from celery.utils.time import add_seconds_to_datetime, maybe_make_aware

from fencebeat.capture import Captured
from fencebeat.clock import Clock
from fencebeat.entries import Entry
from fencebeat.errors import StoreUnreachable
from fencebeat.message_template import (
    Filling,
    Pieces,
    Template,
    Unfit,
    body_of,
    cut,
    embed_of,
    is_row,
    key_of,
    representation,
)
from fencebeat.plainness import application_is_plain, configuration_of, options_of, somebody_listens
from fencebeat.ticks import as_uuid, task_id

log = logging.getLogger(__name__)

Render = Callable[[Entry, int, int], tuple[str, Captured]]
"""Celery's own path: entry, fire time, token -> task id and message."""

AGE = 300.0
"""Seconds after which a template is made and proven anew."""
LOOK = 1.0
"""Seconds between two looks at the configuration; signals are looked at each time."""
AT_ONCE = 50
"""Templates that are made while ticks wait; more of them are left to idle moments."""
REMEMBERED = 200_000
"""Entries whose arguments are kept ready, about 400 bytes each."""
MOST = 5_000
"""Templates that are kept."""
HOUR = 3600

_FIRST, _SECOND = 1_000_000_000_000_000, 1_500_000_000_250_000  # fire times of the two renders: whole, and not


class Templates:
    """The templates of one process. One thread; a fork drops them."""

    def __init__(self, app: Celery, namespace: str, render: Render, clock: Clock) -> None:
        self._app, self._namespace, self._render, self._clock = app, namespace, render, clock
        self._templates: dict[str, Template] = {}
        self._pieces: dict[str, Pieces] = {}
        self._unfit: dict[str, Entry] = {}
        self._made = 0  # since the last idle moment
        self._pid = os.getpid()
        self._looked: float | None = None
        self._allowed = False
        self._configuration = ""
        self._tasks = app.tasks
        self._limits: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))  # of representations; set by a look
        self._forgotten = 0.0

    def message(self, entry: Entry, fire_time: int, token: int) -> tuple[str, Captured] | None:
        """Task id and message of one tick, or None: this tick goes Celery's own way."""
        if not self._permitted() or self._unfit.get(entry.name) is entry:
            return None
        try:
            pieces = self._pieces_of(entry)
            template = self._template_of(pieces)
        except Unfit:
            self._leave(entry)
            return None
        if template is None:
            return None
        identity = task_id(self._namespace, entry.name, fire_time)
        return identity, self._filled(
            template, pieces, (fire_time, token, identity, as_uuid(os.urandom(16), version=4))
        )

    def prepare(self, entries: Iterator[Entry], seconds: float) -> bool:
        """Make templates in an idle moment of at most about `seconds`; returns whether `entries` came to its end.

        Raises StoreUnreachable.
        """
        until = self._clock.elapsed() + seconds
        self._made = 0
        if not self._permitted():
            return True
        for entry in entries:
            if self._unfit.get(entry.name) is not entry and not self._ready(entry):
                try:
                    self.message(entry, 0, 0)
                except StoreUnreachable:
                    raise
                except Exception:
                    log.exception("entry %s has no template; when it is due, Celery's own path is tried", entry.name)
                    self._leave(entry)
                self._made = 0
            if self._clock.elapsed() >= until:
                return False
        return True

    def drop(self) -> None:
        """Forget all templates and what was found unfit."""
        self._templates.clear()
        self._pieces.clear()
        self._unfit.clear()

    def _leave(self, entry: Entry) -> None:
        if len(self._unfit) >= REMEMBERED:
            self._unfit.clear()
        self._unfit[entry.name] = entry

    def _permitted(self) -> bool:
        """Whether nothing in this process stands between a template and the message Celery would make."""
        if somebody_listens():
            return False
        now = self._clock.elapsed()
        if self._pid != os.getpid():
            self._pid, self._looked = os.getpid(), None
            self.drop()
        if self._looked is None or not 0 <= now - self._looked < LOOK:
            self._looked = now
            self._allowed = application_is_plain(self._app)
            amqp, levels = self._app.amqp, self._app.conf.task_repr_maxlevels
            self._limits = ((amqp.argsrepr_maxsize, levels), (amqp.kwargsrepr_maxsize, levels))
            if (configuration := configuration_of(self._app)) != self._configuration:
                self._configuration = configuration
                self.drop()
            if now - self._forgotten >= AGE:  # what was unfit may have become fit
                self._forgotten = now
                self._unfit.clear()
        return self._allowed

    def _pieces_of(self, entry: Entry) -> Pieces:
        """What the entry's arguments become. Raises Unfit."""
        pieces = self._pieces.get(entry.name)
        if pieces is not None and pieces.entry is entry:
            return pieces
        if len(self._pieces) >= REMEMBERED:
            self._pieces.clear()
        if any(isinstance(value, BeatLazyFunc) for value in (*entry.args, *entry.kwargs.values())):
            raise Unfit
        args, kwargs = _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
        key = key_of(entry)
        if key not in self._templates and options_of(self._app, entry.task, entry.options) is None:
            raise Unfit
        task = self._tasks.get(entry.task)
        if task is not None and task.typing:
            try:
                task.__header__(*args, **kwargs)
            except TypeError:
                raise Unfit from None  # Celery's own path says what is wrong with them
        pieces = self._pieces[entry.name] = Pieces(
            entry=entry,
            key=intern(key),
            name=encode_basestring_ascii(entry.name),
            body=body_of(args, kwargs),
            argsrepr=representation(args or (), *self._limits[0]),  # Celery makes () of nothing
            kwargsrepr=intern(representation(kwargs, *self._limits[1])),
        )
        return pieces

    def _ready(self, entry: Entry) -> bool:
        """Whether there is a young template for it already."""
        key = key_of(entry)
        template = self._templates.get(key)
        if len(self._pieces) < REMEMBERED and entry.name not in self._pieces:
            return False
        if template is not None and self._clock.elapsed() - template.made >= AGE / 2:
            del self._templates[key]
            return False
        return template is not None and (template.shared or template.proven_by == entry.name)

    def _template_of(self, pieces: Pieces) -> Template | None:
        """A template that this entry may use; None while there are too many others to make. Raises Unfit."""
        template = self._templates.get(pieces.key)
        if template is not None and self._clock.elapsed() - template.made >= AGE:
            template = None
        if template is not None and (template.shared or template.proven_by == pieces.entry.name):
            return template
        if self._made >= AT_ONCE:
            return None
        self._made += 1
        if template is None:
            template = self._make(pieces)
            if len(self._templates) >= MOST:
                self._templates.clear()
            self._templates[pieces.key] = template
        if not self._proves(template, pieces):
            if template.proven_by == pieces.entry.name:
                del self._templates[pieces.key]
            raise Unfit
        template.shared = template.proven_by != pieces.entry.name
        return template

    def _make(self, pieces: Pieces) -> Template:
        """Render and cut. Raises Unfit."""
        options = options_of(self._app, pieces.entry.task, pieces.entry.options)
        if options is None:
            raise Unfit
        countdown, expires = options.get("countdown"), options.get("expires")
        with self._clock_held(0):
            identity, captured = self._render(pieces.entry, _FIRST, 1)
            template = Template(
                made=self._clock.elapsed(),
                commands=(),
                queues=tuple(captured.queues),
                embed=embed_of(captured),
                row=is_row(captured),
                message_id="" if captured.message_id == identity else captured.message_id,
                eta=float(countdown) if isinstance(countdown, Real) and countdown else None,
                expires=float(expires) if isinstance(expires, Real) else None,
                proven_by=pieces.entry.name,
            )
            values = template.values(pieces, self._filling(template, (_FIRST, 1, identity, captured.message_id)))
        template.commands = tuple(cut(command, values) for command in captured.commands)
        return template

    def _proves(self, template: Template, pieces: Pieces) -> bool:
        """Whether a full render of another tick, an hour later, equals the filled template byte for byte."""
        with self._clock_held(HOUR):
            identity, captured = self._render(pieces.entry, _SECOND, 2)
            return self._filled(template, pieces, (_SECOND, 2, identity, captured.message_id)) == captured

    def _filled(self, template: Template, pieces: Pieces, tick: tuple[int, int, str, str]) -> Captured:
        return template.fill(pieces, self._filling(template, tick))

    def _filling(self, template: Template, tick: tuple[int, int, str, str]) -> Filling:
        return Filling(*tick, eta=self._moment(template.eta), expires=self._moment(template.expires))

    def _moment(self, seconds: float | None) -> str:
        """So many seconds from now, as Celery writes it."""
        if seconds is None:
            return ""
        at = maybe_make_aware(add_seconds_to_datetime(self._app.now(), seconds), tz=self._app.timezone)
        return f'"{at.isoformat()}"'

    @contextmanager
    def _clock_held(self, ahead: int) -> Iterator[None]:
        """Celery's clock stands still, `ahead` seconds in the future. This thread is the only one that publishes."""
        at: datetime = self._app.now() + timedelta(seconds=ahead)
        self._app.now = lambda: at
        try:
            yield
        finally:
            del self._app.now
