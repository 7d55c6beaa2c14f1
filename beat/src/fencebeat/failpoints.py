"""Named places at which a test may break a run. Disarmed, a failpoint costs one truth test.

    FENCEBEAT_TESTING=1
    FENCEBEAT_FAILPOINTS='beat.commit.before=stop@3, index.write.after=kill, index.embed.after=sleep:2.5%0.2'

Names are area.step.edge. Actions: kill, kill_group, exit, stop, pause, sleep:s, raise:Name, hang. `@n` fires at the
n-th passage only, `%p` with probability p from the run's seed (FENCEBEAT_SEED). A failpoint writes its history line
before it acts. `pause` waits until the file FENCEBEAT_STATE_DIR/failpoints/<name>.release exists.
"""

import builtins
import ctypes
import os
import random
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from fencebeat.errors import ImpossibleConfiguration
from fencebeat.history import record

STEPS = {
    "beat": ("acquire", "renew", "recover", "page", "commit", "publish", "resign"),
    "index": ("acquire", "read", "chunk", "embed", "stage", "write", "refresh", "commit", "collect", "purge"),
    "switch": ("read", "apply"),
    "task": ("claim", "ack"),
}
"""Every failpoint there is; a name in the code and not here, or here and in no test, fails the build."""

NAMES = frozenset(f"{a}.{s}.{edge}" for a, steps in STEPS.items() for s in steps for edge in ("before", "after"))

_RULE = re.compile(
    r"(?P<name>[a-z_.]+)=(?P<action>kill_group|kill|exit|stop|pause|hang|sleep|raise)(?::(?P<arg>[\w.]+))?"
    r"(?:@(?P<nth>\d+))?(?:%(?P<share>[\d.]+))?"
)


@dataclass
class _Armed:
    action: str
    arg: str | None
    nth: int | None
    share: float | None
    passed: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(os.environ.get("FENCEBEAT_SEED", "0")))

    def bites(self) -> bool:
        self.passed += 1
        if self.nth is not None and self.passed != self.nth:
            return False
        return self.share is None or self.dice.random() < self.share


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for rule in filter(None, (part.strip() for part in text.split(","))):
        match = _RULE.fullmatch(rule)
        if match is None:
            raise ImpossibleConfiguration(rules=f"FENCEBEAT_FAILPOINTS has a rule that cannot be read: {rule!r}.")
        if match["name"] not in NAMES:
            raise ImpossibleConfiguration(rules=f"there is no failpoint {match['name']!r} (FENCEBEAT_FAILPOINTS).")
        armed[match["name"]] = _Armed(
            action=match["action"],
            arg=match["arg"],
            nth=int(match["nth"]) if match["nth"] else None,
            share=float(match["share"]) if match["share"] else None,
        )
    return armed


def arm(text: str | None = None) -> dict[str, str]:
    """Read FENCEBEAT_FAILPOINTS (or `text`) and return what is armed, name -> action.

    Raises ImpossibleConfiguration for an unknown name, and for the variable without FENCEBEAT_TESTING=1.
    """
    global _armed  # noqa: PLW0603 - read once a process, at its start
    text = os.environ.get("FENCEBEAT_FAILPOINTS", "") if text is None else text
    if text and os.environ.get("FENCEBEAT_TESTING") != "1":
        raise ImpossibleConfiguration(rules="FENCEBEAT_FAILPOINTS is set without FENCEBEAT_TESTING=1.")
    _armed = _parse(text)
    return {name: armed.action for name, armed in _armed.items()}


_armed: dict[str, _Armed] = {}
arm()


def failpoint(name: str) -> None:
    """Mark the place `name`; acts only where a test armed it."""
    if _armed and (armed := _armed.get(name)) is not None and armed.bites():
        record("failpoint", name=name, action=armed.action, passed=armed.passed)
        _act(name, armed)


def _act(name: str, armed: _Armed) -> None:
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill_group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        case "exit":
            os._exit(137)
        case "stop":
            signal.raise_signal(signal.SIGSTOP)  # to this thread: sent to the process, it would run on for a moment
        case "pause":
            gate = Path(os.environ.get("FENCEBEAT_STATE_DIR", ".")) / "failpoints" / f"{name}.release"
            while not gate.exists():
                time.sleep(0.01)
        case "sleep":
            time.sleep(float(armed.arg or 0))
        case "raise":
            raise getattr(builtins, armed.arg or "RuntimeError")(f"failpoint {name}")
        case "hang":
            ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the interpreter lock: no other thread runs
