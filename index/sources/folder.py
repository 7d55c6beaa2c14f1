"""A folder as a source: each file of a known media type is a document, its POSIX path below the root its uid.

What can go wrong with folders, and the answer here:
- the root is missing, as after a lost mount: SourceUnavailable, never an empty listing;
- a part cannot be read, or the tree keeps changing while it is walked: the listing is not `complete`;
- a file changes without its times changing visibly, because it was written twice within one tick of the file system's
  clock: a file changed within 2 s is versioned by its content too, so the next listing looks again (git's "racily
  clean" rule);
- a file is put back with an older modification time: versions are compared for equality only, and ctime moved;
- a link leads out of the root: it is not followed. Links to folders are never followed, so there are no loops.
"""

import errno
import os
import stat
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from fencebeat.clock import Clock
from index.errors import DocumentNotFound, DocumentTooLarge, DocumentUnreadable, SourceUnavailable
from index.ids import meta_hash
from index.model import Fetched, Item, Listing, Meta
from index.sources.media import media_type

RECENT_SECONDS = 2.0  # coarser than the time stamps of any file system in use (FAT: 2 s)
WALKS = 3  # a tree that changed during each of them is listed as incomplete
READS = 3  # a file that changed during each of them is tried again by a later attempt
_BLOCK = 1 << 20


class FolderSource:
    """The documents below one folder. Satisfies `index.ports.Source`."""

    def __init__(self, *, tenant_id: str, source_id: str, root: Path, clock: Clock, acl: tuple[str, ...] = ()) -> None:
        self.tenant_id = tenant_id
        self.source_id = source_id
        self._root = root
        self._clock = clock
        self._acl = acl

    def list(self) -> Listing:
        """Every document with its version, ordered by uid. Raises SourceUnavailable when there is no such folder."""
        for _ in range(WALKS):
            walk = _Walk(self)
            walk.run()
            if walk.steady():
                break
        else:
            walk.incomplete(".", "it changed each time while it was being listed")
        items = tuple(sorted(walk.items, key=lambda item: item.uid))
        return Listing(items=items, complete=walk.complete, problems=tuple(sorted(walk.problems)))

    def fetch(self, uid: str, limit: int) -> Fetched:
        """Read one document of at most `limit` bytes; its version was taken before the bytes and held after them.

        Raises DocumentNotFound, DocumentTooLarge, DocumentUnreadable, or SourceUnavailable when the folder is gone or
        the file changes each time it is read.
        """
        self.check_root()
        kind = media_type(uid)
        if kind is None or not _is_plain(uid):
            raise DocumentNotFound(uid=uid, source=self.source_id)
        meta = self._meta(uid)
        for _ in range(READS):
            with self._open(uid) as (handle, before):
                version = self.version(before, meta)
                if before.st_size > limit:
                    raise DocumentTooLarge(uid=uid, size=before.st_size, limit=limit, version=version)
                data = _read(handle, limit + 1)
                after = os.fstat(handle)
            if len(data) == before.st_size and _identity(before) == _identity(after):
                version = self.version(before, meta, data)
                return Fetched(uid=uid, data=data, media_type=kind, version=version, meta=meta)
        raise SourceUnavailable(source=self.source_id, why=f"{uid} changed each time while it was being read.")

    def version(self, entry: os.stat_result, meta: Meta, data: bytes | None = None) -> str:
        """Name a state of bytes and meta; the content counts when `data` is given and the file changed recently."""
        version = f"{_identity(entry)}:{meta_hash(meta).hex()}"
        return f"{version}:{content_digest(data)}" if data is not None and self.is_recent(entry) else version

    def is_recent(self, entry: os.stat_result) -> bool:
        """Whether the file may yet change without its times telling; a time in the future is recent."""
        return max(entry.st_mtime, entry.st_ctime) > self._clock.wall() - RECENT_SECONDS

    def check_root(self) -> Path:
        """The root with links resolved. Raises SourceUnavailable when it is not a folder that can be reached."""
        try:
            root = self._root.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            raise SourceUnavailable(source=self.source_id, why=f"{_why(error)} ({self._root}).") from error
        if not root.is_dir():
            raise SourceUnavailable(source=self.source_id, why=f"it is not a folder ({self._root}).")
        return root

    def item(self, uid: str, path: Path) -> Item | None:
        """The listing's line for a file; None when it is no document (a link out of the root, not a regular file)."""
        real = self._inside(path)
        if real is None:
            return None
        entry = real.stat()
        if not stat.S_ISREG(entry.st_mode):
            return None
        meta = self._meta(uid)
        version = f"{_identity(entry)}:{meta_hash(meta).hex()}"
        if self.is_recent(entry):
            try:
                version = f"{version}:{_digest_file(real)}"
            except PermissionError:  # listed all the same: fetching it will say that it may not be read
                version = f"{version}:unreadable"
        return Item(uid=uid, version=version, size=entry.st_size)

    def _meta(self, uid: str) -> Meta:
        return Meta(display_name=PurePosixPath(uid).name, acl=self._acl)

    def _inside(self, path: Path) -> Path | None:
        """Where a file really is, None when that is outside the root or hidden."""
        root = self.check_root()
        try:
            real = path.resolve(strict=True)
        except RuntimeError:  # a loop of links leads nowhere
            return None
        if not real.is_relative_to(root) or not _is_plain(real.relative_to(root).as_posix()):
            return None
        return real

    def _open(self, uid: str) -> "_Opened":
        try:
            real = self._inside(self._root / uid)
            if real is None:
                raise DocumentNotFound(uid=uid, source=self.source_id)
            # O_NONBLOCK: opening a pipe that took the file's place must not hang.
            handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise DocumentUnreadable(uid=uid, why=f"{_why(error)}.") from error
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                self.check_root()  # a root that vanished meanwhile is no news about this document
                raise DocumentNotFound(uid=uid, source=self.source_id) from error
            raise SourceUnavailable(source=self.source_id, why=f"{uid}: {_why(error)}.") from error
        opened = _Opened(handle)
        if not stat.S_ISREG(opened.entry.st_mode):
            opened.close()
            raise DocumentNotFound(uid=uid, source=self.source_id)
        return opened


class _Opened:
    """An open file and what it was when opened."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.entry = os.fstat(handle)

    def __enter__(self) -> tuple[int, os.stat_result]:
        return self.handle, self.entry

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.handle)


class _Walk:
    """One pass over the tree. Remembers each folder's change time, to see whether it stood still."""

    def __init__(self, source: FolderSource) -> None:
        self._source = source
        self._root = source.check_root()
        self._times: dict[Path, int] = {}
        self.items: list[Item] = []
        self.problems: list[tuple[str, str]] = []
        self.complete = True

    def run(self) -> None:
        open_folders = [self._root]
        while open_folders:
            folder = open_folders.pop()
            try:
                self._times[folder] = folder.stat().st_mtime_ns
                open_folders.extend(self._visit(folder))
            except FileNotFoundError as error:
                self._source.check_root()
                self._times[folder] = -1  # gone while we walked: this pass does not count
                self.incomplete(self._uid(folder), _why(error))
            except OSError as error:
                self.incomplete(self._uid(folder), _why(error))

    def _visit(self, folder: Path) -> Iterator[Path]:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        for entry in found:
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if not _is_utf8(entry.name):
                # It can never be a document, as its uid could not be stored; the listing is complete without it.
                self.problems.append((_shown(self._uid(path)), "its name is not valid UTF-8, so it cannot be indexed"))
            elif entry.is_dir(follow_symlinks=False):
                yield path
            elif media_type(entry.name) is not None:
                self._take(path)

    def _take(self, path: Path) -> None:
        uid = self._uid(path)
        try:
            item = self._source.item(uid, path)
        except FileNotFoundError:  # deleted since its folder was read, or a link that leads nowhere
            return
        except OSError as error:
            self.incomplete(uid, _why(error))
            return
        if item is not None:
            self.items.append(item)

    def steady(self) -> bool:
        """Whether no folder changed since it was read; a file moved meanwhile might have been missed."""
        try:
            return all(folder.stat().st_mtime_ns == seen for folder, seen in self._times.items())
        except OSError:
            return False

    def incomplete(self, place: str, why: str) -> None:
        self.complete = False
        self.problems.append((place, why))

    def _uid(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def content_digest(data: bytes) -> str:
    """The content part of a version: 16 bytes of blake2b in hex."""
    return blake2b(data, digest_size=16).hexdigest()


def _digest_file(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read(handle: int, at_most: int) -> bytes:
    parts, left = [], at_most
    while left > 0 and (part := os.read(handle, min(left, _BLOCK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _identity(entry: os.stat_result) -> str:
    return f"{entry.st_size}:{entry.st_mtime_ns}:{entry.st_ctime_ns}:{entry.st_ino}"


def _is_plain(uid: str) -> bool:
    """Whether a path stays below its root and has no hidden part."""
    return bool(uid) and "\0" not in uid and not any(part.startswith(".") or not part for part in uid.split("/"))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(uid: str) -> str:
    return os.fsencode(uid).decode(errors="backslashreplace")


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
