# SPDX-License-Identifier: Apache-2.0
"""New files of a folder appear together or not at all, whatever ends the process.

    with replacing(folder) as changes:
        write(changes.create("model.safetensors"))     a temporary file beside, under a name of ours
        write(changes.create("config.json"))
        changes.remove("model.safetensors.index.json")

Nothing is visible until the block ends. Then every temporary file is flushed to the disk, and

1. one file and nothing to remove: it is renamed over the old one, which is atomic;
2. else a record of all that is to be done is put into the folder, also by renaming. That is the moment of
   commitment. Before it the old files are the checkpoint, and the temporary ones are rubbish that the next
   save sweeps up. After it the new files are: whoever comes next, be it this process, a later save, or a
   reader (which calls `finish`), carries out what the record says. Every step may be repeated, so it does not
   matter where the one before was killed.

The order of the steps is for readers that do not know the record. If config.json is to change, it goes first
and comes back last: in between the folder is plainly no checkpoint, and never an old configuration with new
weights. Shards get names that the folder does not have yet, so the old index stays true until it is replaced.
What only the old checkpoint used is removed when the new files are there, and before config.json is: a reader
that prefers model.safetensors to an index would find the old one.

A folder is saved to by one at a time (an advisory lock on the folder, which the system releases when its
holder dies). So whatever carries a temporary name while we hold the lock has been left by a killed process.
Where folders cannot be locked (some network file systems), two saves at once are the caller's affair and
nothing is swept up.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import threading
from typing import Any

fcntl: Any  # None on Windows: there an open file cannot be removed, which protects others' files as well
try:
    import fcntl
except ImportError:
    fcntl = None

RECORD = ".gpt2cy-save.json"
ENTRY = "config.json"  # what readers look at first
_TEMPORARY = re.compile(r"\.gpt2cy-[0-9a-f]{16}\.tmp")
_MOST_RECORD_BYTES = 1 << 24

_saving = threading.local()  # .folders: those that this thread is saving to


class Changes:
    """What a save does to a folder.

    Attributes
    ----------
    folder : path-like
    files : dict of str to str
        Temporary name by final name, in the order of appearance.
    removed : list of str
        Names that go when the files appear.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = folder
        self.files: dict[str, str] = {}
        self.removed: list[str] = []

    def create(self, name: str) -> str:
        """Make an empty temporary file that will be `name`; return its path."""
        temporary = f".gpt2cy-{secrets.token_hex(8)}.tmp"
        _check_target(os.path.join(self.folder, name))
        self.files[name] = temporary  # before there is a file: an interrupt between would leave it
        path = os.path.join(self.folder, temporary)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return path

    def remove(self, name: str) -> None:
        """Remove `name`, if it is there, once the files have appeared."""
        self.removed.append(name)

    def commit(self) -> None:
        """Make the files appear."""
        for temporary in self.files.values():
            _sync(os.path.join(self.folder, temporary))
        if len(self.files) == 1 and not self.removed:
            [(name, temporary)] = self.files.items()
            os.replace(os.path.join(self.folder, temporary), os.path.join(self.folder, name))
            _sync_folder(self.folder)
            return
        text = json.dumps({"files": self.files, "removed": self.removed}).encode()
        path = self.create(RECORD)
        _parsed(path, text)  # what nobody could carry out is not committed to
        with open(path, "wb") as file:
            file.write(text)
        _sync(path)
        os.replace(path, os.path.join(self.folder, RECORD))
        _carry_out(self.folder)

    def discard(self) -> None:
        """Remove the temporary files."""
        for temporary in self.files.values():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, temporary))


@contextlib.contextmanager
def replacing(folder: str | os.PathLike[str]):
    """Collect changes to an existing folder, and make them together when the block ends without an exception.

    Raises
    ------
    OSError
        If the files cannot be written; the folder is then as it was.
    RuntimeError
        If this thread is saving to the folder already (from a signal handler).

    Examples
    --------
    >>> import os, tempfile
    >>> from gpt2cy.weights.atomic import replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(folder) as changes:
    ...         with open(changes.create("a.txt"), "w") as file:
    ...             print("all of it", file=file)
    ...         before = os.path.exists(os.path.join(folder, "a.txt"))
    ...     before, os.listdir(folder)
    (False, ['a.txt'])
    """
    with _locked(folder) as alone:
        _carry_out(folder)
        if alone:
            _sweep(folder)
        changes = Changes(folder)
        try:
            yield changes
            changes.commit()
        except BaseException as error:
            if not _carry_out(folder):  # no record: nothing has appeared
                changes.discard()
            if isinstance(error, OSError) and error.filename is None:
                raise OSError(error.errno or errno.EIO, error.strerror or str(error), folder) from error
            raise


def finish(folder: str | os.PathLike[str]) -> bool:
    """Carry out what an interrupted save had ready; readers call this before they look into a folder.

    Returns
    -------
    bool
        Whether there was anything to do.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    ValueError
        If the record of the save is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from gpt2cy.weights.atomic import finish
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     finish(folder)
    False
    """
    if not os.path.lexists(os.path.join(folder, RECORD)):
        return False
    with _locked(folder):
        return _carry_out(folder)


def read_start(path: str, most: int) -> bytes:
    """Return a small file's bytes, and not more than `most` of a large one's."""
    with open(path, "rb") as file:
        return file.read(min(most, os.fstat(file.fileno()).st_size))  # read(most) would allocate as much


def _carry_out(folder):
    """Do what the record says, as far as it has not been done; return whether there is one."""
    record = os.path.join(folder, RECORD)
    try:
        text = read_start(record, _MOST_RECORD_BYTES)
    except FileNotFoundError:
        return False
    files, removed = _parsed(record, text)
    try:
        _sync_folder(folder)  # the record is on the disk before the first step
        waiting = {
            name: temporary
            for name, temporary in files.items()
            if os.path.lexists(os.path.join(folder, temporary))
        }
        if ENTRY in waiting:
            _unlink(os.path.join(folder, ENTRY))
        last = waiting.pop(ENTRY, None)
        for name, temporary in waiting.items():
            os.replace(os.path.join(folder, temporary), os.path.join(folder, name))
        for name in removed:
            _unlink(os.path.join(folder, name))
        if last is not None:
            os.replace(os.path.join(folder, last), os.path.join(folder, ENTRY))
        _sync_folder(folder)
        _unlink(record)
    except OSError as error:
        raise OSError(
            error.errno,
            f"a save was interrupted when its files were complete, and they cannot be put in place "
            f"({error.strerror}); load from the folder, or save to it, with permission to change it",
            folder,
        ) from error
    return True


def _parsed(path, text):
    """The record's files and removed names; a record from anywhere must not reach out of the folder."""
    try:
        steps = json.loads(text)
        files, removed = dict(steps["files"]), list(steps["removed"])
        sound = (
            all(_replaceable(name) for name in (*files, *removed))
            and all(_TEMPORARY.fullmatch(temporary) for temporary in files.values())
            and not set(files) & set(removed)
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise ValueError(f"{path}: expected the record of an interrupted save, got something else; delete it")
    return files, removed


def _replaceable(name):
    """Whether the name is one of a checkpoint's files, so that a record may replace or remove it."""
    return name == ENTRY or re.fullmatch(r"model[\w-]*\.safetensors(\.index\.json)?", name)


def _check_target(path):
    """Raise now what renaming over the path would raise at the end."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, "expected a file, got a folder", path)


def _sweep(folder):
    """Remove what killed saves have left. We hold the lock, so nobody is writing these."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


@contextlib.contextmanager
def _locked(folder):
    """Have the folder to ourselves; yields False where it cannot be locked."""
    seen = os.stat(folder)
    key = seen.st_dev, seen.st_ino
    folders = _saving.__dict__.setdefault("folders", set())
    if key in folders:  # the lock would wait for ourselves
        raise RuntimeError(f"{folder}: this thread is saving to this folder already")
    folders.add(key)
    descriptor = None
    alone = fcntl is None
    try:
        with contextlib.suppress(OSError):
            if fcntl is not None:
                descriptor = os.open(folder, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                alone = True
        yield alone
    finally:
        folders.discard(key)
        if descriptor is not None:
            if alone:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a fork has a copy
            os.close(descriptor)


def _unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sync(path):
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder):
    """Flush the folder's names, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
