"""A process with an elector and a tick thread, and nothing else: `elector_process.py URL NAMESPACE HOLDER LEASE`.

SIGTERM stops it from inside its signal handler, as Celery does. What happens is in the history file.
"""

import signal
import sys
import threading

from fencebeat.clock import system_clock
from fencebeat.connection import Broker
from fencebeat.elector import Elector
from fencebeat.lease import LeaseTiming
from fencebeat.locks.redis import RedisLock
from fencebeat.recovery import Recovery


def main(url: str, namespace: str, holder: str, lease: str) -> None:
    timing, broker, ending = LeaseTiming.of(float(lease)), Broker(url), []
    recovery = Recovery(broker.client(timing.call_timeout), broker.keys(namespace), carrier="lock")
    elector = Elector(RedisLock.of(broker, namespace, timing, holder), timing, clock=system_clock(), prepare=recovery)

    def stop(*_: object) -> None:
        elector.stop()
        ending.append(True)

    signal.signal(signal.SIGTERM, stop)
    elector.start()
    while not ending:
        elector.progress()
        threading.Event().wait(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
