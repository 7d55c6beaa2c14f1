import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from config.settings import SourceConfig
from fencebeat.clock import ManualClock, SystemClock
from index.errors import DocumentNotFound, DocumentTooLarge, DocumentUnreadable, SourceUnavailable
from index.sources import folder as folder_module
from index.sources.registry import make_sources

LATER = 3600.0  # files made by a test are then no longer recent


@pytest.fixture
def tmp_path():
    """Not pytest's: that one is below a folder which only its owner may enter."""
    with TemporaryDirectory(prefix="fb-") as folder:
        path = Path(folder).resolve()
        path.chmod(0o755)
        yield path


@pytest.fixture
def root(tmp_path):
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs"


def source(root: Path, *, later: float = LATER, acl: tuple[str, ...] = ()):
    clock = ManualClock(wall=SystemClock().wall() + later)
    return make_sources({"docs": SourceConfig(path=root, acl=acl)}, clock)["docs"]


def uids(listing):
    return [item.uid for item in listing.items]


@contextmanager
def nobody():
    """The block runs as a user without rights, also where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_lists_known_files_by_posix_path_in_a_fixed_order(root):
    for name in ("b.md", "a/z.txt", "a/B.HTML", "a.md", "picture.png", "no-suffix"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("text")

    listing = source(root).list()

    assert uids(listing) == ["a.md", "a/B.HTML", "a/z.txt", "b.md"]
    assert listing.complete
    assert listing.problems == ()
    assert [item.size for item in listing.items] == [4, 4, 4, 4]


def test_hidden_files_and_folders_are_no_documents(root):
    (root / ".git").mkdir()
    (root / ".git" / "a.md").write_text("x")
    (root / ".a.md").write_text("x")

    assert uids(source(root).list()) == []
    for uid in (".a.md", ".git/a.md"):
        with pytest.raises(DocumentNotFound):
            source(root).fetch(uid, 100)


def test_a_missing_root_is_never_an_empty_listing(root):
    root.rmdir()

    with pytest.raises(SourceUnavailable, match="no such file"):
        source(root).list()
    with pytest.raises(SourceUnavailable):
        source(root).fetch("a.md", 100)


def test_a_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file.md").write_text("x")

    with pytest.raises(SourceUnavailable, match="not a folder"):
        source(tmp_path / "file.md").list()


def test_a_folder_that_may_not_be_read_makes_the_listing_incomplete(root):
    (root / "open.md").write_text("x")
    (root / "closed").mkdir(mode=0o700)
    (root / "closed" / "a.md").write_text("x")
    (root / "closed").chmod(0)

    with nobody():
        listing = source(root).list()
    (root / "closed").chmod(0o700)

    assert not listing.complete
    assert listing.problems == (("closed", "permission denied"),)
    assert uids(listing) == ["open.md"]


def test_a_file_that_may_not_be_read_is_listed_and_named_when_it_is_fetched(root):
    (root / "a.md").write_text("secret")
    (root / "a.md").chmod(0)

    for later in (0, LATER):  # a recent file is read for its version
        with nobody():
            assert uids(source(root, later=later).list()) == ["a.md"]
            with pytest.raises(DocumentUnreadable, match="permission denied"):
                source(root).fetch("a.md", 100)


def test_links_are_not_followed_out_of_the_root_nor_into_folders(root, tmp_path):
    (tmp_path / "outside.md").write_text("secret")
    (root / "inside.md").write_text("x")
    (root / ".hidden.md").write_text("x")
    (root / "out.md").symlink_to(tmp_path / "outside.md")
    (root / "relative.md").symlink_to("../outside.md")
    (root / "to-hidden.md").symlink_to(".hidden.md")
    (root / "loop.md").symlink_to("loop.md")
    (root / "nowhere.md").symlink_to("missing.md")
    (root / "up").symlink_to(root, target_is_directory=True)
    (root / "in.md").symlink_to("inside.md")

    listing = source(root).list()

    assert uids(listing) == ["in.md", "inside.md"]
    assert listing.complete
    for uid in ("out.md", "relative.md", "to-hidden.md", "loop.md", "../outside.md", "nowhere.md", "", "a\0.md"):
        with pytest.raises(DocumentNotFound):
            source(root).fetch(uid, 100)


def test_a_name_that_is_not_utf8_is_reported_and_the_listing_stays_complete(root):
    bad = os.fsencode(root) + b"/\xe9t\xe9.md"
    Path(os.fsdecode(bad)).write_text("x")
    (root / "good.md").write_text("x")

    listing = source(root).list()

    assert uids(listing) == ["good.md"]
    assert listing.complete
    assert listing.problems == ((r"\xe9t\xe9.md", "its name is not valid UTF-8, so it cannot be indexed"),)


def test_listing_and_fetching_name_the_same_version(root):
    (root / "a.md").write_text("text")

    for later in (0, LATER):
        here = source(root, later=later)
        fetched = here.fetch("a.md", 100)
        assert fetched.version == here.list().items[0].version
        assert (fetched.data, fetched.media_type, fetched.meta.display_name) == (b"text", "text/markdown", "a.md")


def test_a_file_put_back_with_an_older_time_has_another_version(root):
    path = root / "a.md"
    path.write_text("one")
    os.utime(path, ns=(10**18, 10**18))
    before = source(root).list().items[0].version

    path.write_text("two")
    os.utime(path, ns=(10**18, 10**18))

    assert source(root).list().items[0].version != before


def test_a_recent_file_is_versioned_by_its_content_too(root):
    """Two writes within one tick of the file system's clock leave size and times alike; here the times are held."""
    path = root / "a.md"
    path.write_text("one")
    frozen = path.stat()
    recent, old = source(root, later=0), source(root)

    one, two = (recent.version(frozen, recent._meta("a.md"), data) for data in (b"one", b"two"))
    settled = {old.version(frozen, old._meta("a.md"), data) for data in (b"one", b"two")}

    assert one != two
    assert len(settled) == 1
    assert recent.list().items[0].version == one


def test_a_change_of_the_acl_is_a_new_version(root):
    (root / "a.md").write_text("x")

    versions = {source(root, acl=acl).list().items[0].version for acl in ((), ("staff",), ("staff", "guests"))}

    assert len(versions) == 3


def test_the_limit_is_kept_without_reading_the_file(root, monkeypatch):
    with (root / "big.md").open("wb") as file:
        file.truncate(10**12)  # sparse: reading it would take all memory

    with pytest.raises(DocumentTooLarge, match="1000000000000 bytes, more than the limit of 1000"):
        source(root).fetch("big.md", 1000)


def test_a_file_of_exactly_the_limit_is_read(root):
    (root / "a.md").write_bytes(b"x" * 100)

    assert len(source(root).fetch("a.md", 100).data) == 100
    with pytest.raises(DocumentTooLarge):
        source(root).fetch("a.md", 99)


def changing(monkeypatch, path: Path, times: int):
    """The file grows behind each of the first `times` reads."""
    whole = folder_module._read
    left = [times]

    def read(handle, at_most):
        data = whole(handle, at_most)
        if left[0]:
            left[0] -= 1
            with path.open("ab") as file:
                file.write(b"!")
        return data

    monkeypatch.setattr(folder_module, "_read", read)


def test_a_file_that_changes_while_it_is_read_is_read_again(root, monkeypatch):
    (root / "a.md").write_text("x")
    changing(monkeypatch, root / "a.md", 2)

    fetched = source(root).fetch("a.md", 100)

    assert fetched.data == b"x!!"
    assert fetched.version == source(root).list().items[0].version


def test_a_file_that_always_changes_is_tried_again_later(root, monkeypatch):
    (root / "a.md").write_text("x")
    changing(monkeypatch, root / "a.md", 99)

    with pytest.raises(SourceUnavailable, match="changed each time"):
        source(root).fetch("a.md", 100)


def test_a_missing_file_is_not_found(root):
    with pytest.raises(DocumentNotFound):
        source(root).fetch("gone.md", 100)
    with pytest.raises(DocumentNotFound):
        source(root).fetch("gone/also.md", 100)


def test_a_pipe_in_place_of_a_file_does_not_hang(root):
    os.mkfifo(root / "a.md")

    assert uids(source(root).list()) == []
    with pytest.raises(DocumentNotFound):
        source(root).fetch("a.md", 100)


def test_a_tree_that_changes_during_each_walk_is_not_complete(root, monkeypatch):
    (root / "sub").mkdir()
    (root / "sub" / "a.md").write_text("x")
    here = source(root)
    whole, count = here.item, [0]

    def item(uid, path):
        count[0] += 1
        (root / f"new-{count[0]}.bin").write_text("")  # a rename across folders would look the same
        return whole(uid, path)

    monkeypatch.setattr(here, "item", item)
    listing = here.list()

    assert not listing.complete
    assert listing.problems == ((".", "it changed each time while it was being listed"),)


def test_a_tree_that_changed_once_is_walked_again(root, monkeypatch):
    (root / "a.md").write_text("x")
    here = source(root)
    whole = here.item

    def item(uid, path):
        (root / "b.md").touch(exist_ok=True)
        return whole(uid, path)

    monkeypatch.setattr(here, "item", item)
    listing = here.list()

    assert listing.complete
    assert uids(listing) == ["a.md", "b.md"]
