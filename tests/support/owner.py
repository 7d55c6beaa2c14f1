"""A process that owns local servers, to be killed by tests: `python owner.py FOLDER NAMES`.

Prints one JSON line {"addresses", "pids", "keeper"} once they answer, then waits until its standard input ends.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ops.services import Services

if __name__ == "__main__":
    with Services(Path(sys.argv[1]), sys.argv[2].split(",")) as services:
        facts = {"addresses": services.start().environ(), "keeper": services.keeper.pid}
        facts["pids"] = {name: child.pid for name, child in services.children.items()}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
