"""Which Java is taken, and the cache of jars: whole or absent, built once, never again."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from ops.services import NoJava, NoMaven, ServerFailed
from ops.services.opensearch.jars import cache_folder, cached, fetch
from ops.services.opensearch.java import find_java


def _script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _java(home, version):
    return _script(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")


def test_the_named_java_comes_first(tmp_path):
    named = _java(tmp_path / "named", "21.0.1")
    other = _java(tmp_path / "other", "25")
    _java(tmp_path / "jvm" / "jdk-26", "26")
    environ = {"FENCEBEAT_JAVA_HOME": str(tmp_path / "named"), "JAVA_HOME": str(tmp_path / "other"), "PATH": ""}
    assert find_java(environ, [tmp_path / "jvm"]) == named
    del environ["FENCEBEAT_JAVA_HOME"]
    assert find_java(environ, [tmp_path / "jvm"]) == other


def test_one_too_old_is_passed_over(tmp_path):
    _java(tmp_path / "old", "17.0.15")
    _java(tmp_path / "jvm" / "java-1.8.0", "1.8.0_442")
    new = _java(tmp_path / "jvm" / "some-25-jdk", "25.0.1")
    _java(tmp_path / "path", "17.0.15")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(environ, [tmp_path / "jvm"]) == new


def test_the_one_on_path_is_the_last_resort(tmp_path):
    last = _java(tmp_path / "path", "21")
    assert find_java({"PATH": str(tmp_path / "path" / "bin")}, [tmp_path / "missing"]) == last


def test_no_java_names_what_was_found_in_one_line(tmp_path):
    _java(tmp_path / "path", "17.0.15")
    with pytest.raises(NoJava, match="is 17") as caught:
        find_java({"PATH": str(tmp_path / "path" / "bin")}, [])
    assert "\n" not in str(caught.value)


def test_a_java_that_does_not_run_is_passed_over(tmp_path):
    _script(tmp_path / "broken" / "bin" / "java", "exit 1")
    good = _java(tmp_path / "path", "23-ea")
    environ = {"JAVA_HOME": str(tmp_path / "broken"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(environ, []) == good


@pytest.fixture(name="environ")
def _environ(tmp_path):
    """A Maven that notes each of its runs."""
    _script(tmp_path / "bin" / "mvn", f"echo run >> {tmp_path}/runs; test -f pom.xml && mkdir lib && touch lib/one.jar")
    return {"FENCEBEAT_CACHE": str(tmp_path / "cache"), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}


def test_jars_are_fetched_once(environ, tmp_path):
    assert cached(environ) is None
    folder = fetch(environ)
    assert (folder / "lib" / "one.jar").exists()
    assert fetch({**environ, "PATH": ""}) == folder == cached(environ)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_two_at_once_build_once(environ, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(fetch, [environ] * 4))) == 1
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_failed_build_leaves_nothing_and_says_why(environ, tmp_path):
    _script(tmp_path / "bin" / "mvn", "mkdir lib; echo 'could not resolve'; exit 1")
    with pytest.raises(ServerFailed, match=r"(?s)Maven.*could not resolve"):
        fetch(environ)
    assert cached(environ) is None
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_what_a_killed_build_left_is_removed(environ, tmp_path):
    folder = fetch(environ)
    left = folder.with_name(f"{folder.name}.building-left")
    folder.rename(left)
    assert (fetch(environ) / "lib" / "one.jar").exists()
    assert not left.exists()


def test_no_maven_is_one_line(environ):
    with pytest.raises(NoMaven) as caught:
        fetch({**environ, "PATH": ""})
    assert "\n" not in str(caught.value)


def test_the_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder({}) == tmp_path / ".cache" / "fencebeat"
    assert cache_folder({"XDG_CACHE_HOME": "/x"}).parts == ("/", "x", "fencebeat")
    assert cache_folder({"FENCEBEAT_CACHE": "/y"}).parts == ("/", "y")
