"""Counts of several processes add up, survive SIGKILL, and have bounded labels."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

COUNT_AND_DIE = """
import os, signal
from config.metrics import observe
observe("document.committed", labels={"target": "t"}, measures={"chunks": 3})
os.kill(os.getpid(), signal.SIGKILL)
"""

FORK = """
import os
from config.metrics import observe
observe("document.committed", labels={"target": "t"}, measures={})
child = os.fork()
observe("document.committed", labels={"target": "t"}, measures={})
if child:
    os.waitpid(child, 0)
"""

MANY = """
from config.metrics import LABEL_LIMIT, observe
for n in range(LABEL_LIMIT + 7):
    observe("search.answered", labels={"target": f"t{n}"}, measures={})
"""

EARLY = """
import prometheus_client  # as Celery's command line does, through Flower
from config.metrics import observe
observe("search.answered", labels={"target": "t"}, measures={})
"""


COMMAND = """
from config.metrics import count_malformed, count_nothing, observe
count_nothing()
observe("search.answered", labels={"target": "t"}, measures={"seconds": 1.0})
count_malformed("search.answered")
"""


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"FENCEBEAT_STATE_DIR": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def shown(folder):
    answer = run("import sys; from config.metrics import text; sys.stdout.buffer.write(text())", folder)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_counts_of_killed_processes_are_kept_and_added(tmp_path):
    for _ in range(2):
        assert run(COUNT_AND_DIE, tmp_path).returncode == -9

    assert 'fencebeat_document_committed_total{target="t"} 2.0' in shown(tmp_path)
    assert 'fencebeat_document_committed_chunks_sum{target="t"} 6.0' in shown(tmp_path)


def test_a_forked_child_counts_for_itself(tmp_path):
    done = run(FORK, tmp_path)

    assert done.returncode == 0, done.stderr
    assert 'fencebeat_document_committed_total{target="t"} 3.0' in shown(tmp_path)


def test_a_label_with_too_many_values_is_cut_off(tmp_path):
    done = run(MANY, tmp_path)

    assert done.returncode == 0, done.stderr
    assert shown(tmp_path).count("fencebeat_search_answered_total{") == 101
    assert 'fencebeat_search_answered_total{target="other"} 7.0' in shown(tmp_path)


def test_counts_are_shared_although_somebody_imported_the_client_before_us(tmp_path):
    done = run(EARLY, tmp_path)

    assert done.returncode == 0, done.stderr
    assert 'fencebeat_search_answered_total{target="t"} 1.0' in shown(tmp_path)


def test_a_command_leaves_no_file_behind(tmp_path):
    done = run(COMMAND, tmp_path)

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []
