import json
import subprocess
import sys
import threading

from fencebeat import history


def test_without_a_file_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.delenv("FENCEBEAT_HISTORY", raising=False)

    history.record("event", event="term.elected")

    assert list(tmp_path.iterdir()) == []


def test_a_line_says_who_when_and_what_in_order(monkeypatch, tmp_path):
    path = tmp_path / "history"
    monkeypatch.setenv("FENCEBEAT_HISTORY", str(path))
    monkeypatch.setenv("FENCEBEAT_PROC", "beat-2")

    history.record("event", event="term.elected", token=7)
    history.record("event", event="term.lost", token=7, reason="fenced")

    first, second = history.read(path)
    assert (first["proc"], first["kind"], first["event"], first["token"]) == ("beat-2", "event", "term.elected", 7)
    assert second["seq"] == first["seq"] + 1
    assert second["t"] >= first["t"]


def test_lines_of_many_threads_and_processes_stay_whole(monkeypatch, tmp_path):
    path = tmp_path / "history"
    monkeypatch.setenv("FENCEBEAT_HISTORY", str(path))
    program = "from fencebeat.history import record\nfor n in range(200): record('event', event='x' * 300, n=n)"
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]  # waited for below
    threads = [
        threading.Thread(target=lambda: [history.record("event", event="y" * 300) for _ in range(100)])
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [process.wait(30) for process in others] == [0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 800
    assert len({(line["pid"], line["seq"]) for line in lines}) == 800


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    path = tmp_path / "history"
    path.write_text('{"seq": 1}\n{"seq": 2')

    assert list(history.read(path)) == [{"seq": 1}]
    assert list(history.read(tmp_path / "absent")) == []


def test_a_follower_gives_what_read_gives_and_leaves_out_a_line_that_is_being_written(tmp_path):
    path = tmp_path / "history.jsonl"
    follower = history.Follower(path)
    assert follower.lines() == []
    written = history.History(path, "one")
    written.write("event", event="first")
    with path.open("ab") as file:
        file.write(b'{"t": 1, "pro')
    assert follower.lines() == list(history.read(path))
    assert len(follower.lines()) == 1
    with path.open("ab") as file:
        file.write(b'c": "two"}\n')
    assert follower.lines() == list(history.read(path))
    assert len(follower.lines()) == 2
