"""Create and remove files safely, even in folders where other users can write.

Another user could place symbolic links at our paths, or replace our folder. So every file is created through the
descriptor of its folder, with a random name, and without following symbolic links. Only its owner can read it, unless
the user chose its name. A file is removed only if its name still leads to the file that this process has open.
"""

import errno
import grp
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeVar

from ullage.base.errors import UsageError
from ullage.base.public import public

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNERS_FOLDER: Final = 0o700
_OWNERS_FILE: Final = 0o600
_NAMED_BY_USER: Final = 0o666  # minus the umask, as for any file that a program writes for the user
_TRIES: Final = 8

Made = TypeVar("Made")


@public
class SharedFolderError(UsageError):
    """A folder is unsafe, because another user can write to it or has replaced it."""


class OwnFolder(AbstractContextManager["OwnFolder"]):
    """A folder of this user, held open by a file descriptor.

    New files go into this folder, even if its path now leads to another folder.
    """

    def __init__(self, descriptor: int, path: Path, *, parent: int | None = None, home: "OwnFolder | None" = None):
        """Create the object from open descriptors. Call `make`, `make_unique` or `open` instead.

        Args:
            descriptor: the descriptor of the folder; it is closed with this object.
            path: the path by which the folder was created or found.
            parent: the descriptor of the folder that contains this folder; it is closed with this object. None if this
                folder existed before.
            home: the folder that contains this folder, if it was created only for this folder.
        """
        self.path = path
        self._descriptor = descriptor
        self._parent = parent
        self._home = home

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def make(cls, path: Path) -> "OwnFolder":
        """Create a folder and its missing parent folders.

        Raises:
            SharedFolderError: another user can write to the folder that would contain the new folder.
            OSError: the folder exists, or cannot be created.
        """
        return _make(path.absolute(), is_home_checked=True)

    @classmethod
    def make_unique(cls, home: Path, name: str) -> "OwnFolder":
        """Create a folder NAME-TIME-RANDOM in the folder `home`.

        Raises:
            SharedFolderError: another user can write to `home`.
            OSError: the folder cannot be created.
        """
        for _ in range(_TRIES):
            unique = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            # Another run may have just created `home` and a folder in it, or may have ended and removed `home`.
            with suppress(FileExistsError, FileNotFoundError):
                return cls.make(home / unique)
        raise OSError(errno.EEXIST, "new folders in it are removed, or exist already", str(home))

    @classmethod
    def open(cls, path: Path, *, inode: int | None = None) -> "OwnFolder":
        """Open an existing folder.

        Args:
            path: the path of the folder; it may not be a symbolic link.
            inode: the inode number that the folder had when it was created; None: any folder of this user is accepted.

        Raises:
            SharedFolderError: the folder has another inode number or another owner, or another user can write to it.
            OSError: the folder does not exist, or the path is not a folder.
        """
        return cls(os.open(path, _FOLDER | os.O_NOFOLLOW), path.absolute())._checked(inode)

    @classmethod
    def open_or_make(cls, path: Path) -> "OwnFolder":
        """Open a folder of this user, or create it if it is missing.

        Raises:
            SharedFolderError: the folder has another owner, or another user can write to it or to the folder above it.
            OSError: the folder cannot be opened or created.
        """
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                return cls.open(path)
            with suppress(FileExistsError):  # another process has created it meanwhile, or the folder above it
                return cls.make(path)
        return cls.open(path)

    @property
    def inode(self) -> int:
        """The inode number of the folder."""
        return os.fstat(self._descriptor).st_ino

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to this folder."""
        try:
            return _is_same(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    @property
    def is_removed(self) -> bool:
        """Whether the folder was deleted."""
        return not os.fstat(self._descriptor).st_nlink

    def names(self) -> list[str]:
        """Return the names of all entries in the folder."""
        return os.listdir(self._descriptor)

    def folder(self, name: str) -> "OwnFolder":
        """Open a subfolder.

        Raises:
            SharedFolderError: the subfolder has another owner, or another user can write to it.
            OSError: the subfolder does not exist, or the name belongs to something other than a folder.
        """
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor)
        return OwnFolder(descriptor, self.path / name)._checked(None)

    def make_folder(self, name: str) -> "OwnFolder":
        """Create a subfolder. If the name exists, random characters are added to it.

        Raises:
            OSError: the subfolder cannot be created.
        """
        return self._with_free_name(name, lambda free: _made(os.dup(self._descriptor), self.path / free, home=None))

    def new_file(self, name: str) -> tuple[int, Path]:
        """Create a file and return its descriptor and path.

        If its name exists already, random characters are added to the name.

        Raises:
            OSError: the file cannot be created.
        """

        def make(free: str) -> tuple[int, Path]:
            return os.open(free, os.O_RDWR | _NEW, _OWNERS_FILE, dir_fd=self._descriptor), self.path / free

        return self._with_free_name(name, make)

    def _with_free_name(self, name: str, make: Callable[[str], Made]) -> Made:
        for _ in range(_TRIES):
            with suppress(FileExistsError):
                return make(name)
            name = _other_name(name)
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path / name))

    def read_file(self, name: str, *, most_bytes: int) -> bytes:
        """Return up to `most_bytes` from the beginning of a file of this user.

        Raises:
            OSError: the file does not exist, has another owner, or is a link, a pipe or a device.
        """
        with open(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=self._descriptor), "rb") as file:
            if not _is_own_file(file.fileno()):
                raise OSError(
                    errno.EINVAL, "it is not a regular file, or belongs to another user", str(self.path / name)
                )
            return file.read(most_bytes)

    def remove_file(self, name: str, descriptor: int) -> None:
        """Remove a file, if its name still leads to the file that is open as `descriptor`."""
        _remove_same(self._descriptor, name, descriptor)

    def whole_file(self, name: str) -> "WholeFile":
        """Start a new file in this folder. The file gets its name only when it is complete."""
        return WholeFile(os.dup(self._descriptor), self.path / name, mode=_OWNERS_FILE)

    def write_whole(self, name: str, content: bytes) -> None:
        """Write a file completely or not at all. An existing file is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        with self.whole_file(name) as file:
            file.write(content)

    def remove(self, is_ours: Callable[[int], bool]) -> None:
        """Remove the folder and its files.

        If this package did not write one of the files, nothing is removed. The parent folder is removed, too, if it was
        created only for this folder.

        Args:
            is_ours: returns, for an open file in the folder, whether this package wrote it.
        """
        held: dict[str, int] = {}
        try:
            for name in self.names():
                held[name] = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=self._descriptor)
            if all(_is_own_file(descriptor) and is_ours(descriptor) for descriptor in held.values()):
                for name, descriptor in held.items():
                    self.remove_file(name, descriptor)
                self._remove_empty()
        except OSError:  # a link, a pipe or a folder, which this package does not create
            return
        finally:
            for descriptor in held.values():
                os.close(descriptor)

    def remove_tree(self) -> None:
        """Remove the folder with everything in it. Other users must not have added files.

        Raises:
            OSError: an entry cannot be removed, or an entry was added while the folder was being removed.
        """
        for name in self.names():
            found = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(name, dir_fd=self._descriptor)
            else:
                os.unlink(name, dir_fd=self._descriptor)
        if self.is_in_place:
            os.rmdir(self.path)

    def close(self) -> None:
        """Close the file descriptors of the folder."""
        for descriptor in (self._descriptor, self._parent):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._descriptor, self._parent = -1, None
        if self._home is not None:
            self._home.close()

    def _remove_empty(self) -> None:
        if self._parent is not None and _leads_to(self._parent, self.path.name, self._descriptor):
            os.rmdir(self.path.name, dir_fd=self._parent)
            if self._home is not None:
                self._home._remove_empty()

    def _checked(self, inode: int | None) -> Self:
        try:
            found = os.fstat(self._descriptor)
            if inode not in (None, found.st_ino) or found.st_uid != os.geteuid():
                raise SharedFolderError(f"{self.path} is not the folder that was created, or belongs to another user")
            _refuse_shared(self.path, found)
        except BaseException:
            self.close()
            raise
        return self


class WholeFile:
    """A file that is written in pieces and gets its name only when it is complete.

    Use this class as a context manager, or call `complete` or `discard`.
    """

    def __init__(self, folder: int, path: Path, *, mode: int) -> None:
        """Create the temporary file.

        Args:
            folder: a descriptor of the folder, which this object closes when the file is complete or discarded.
            path: the path of the file once it is complete.
            mode: the permissions of the file.

        Raises:
            OSError: the file cannot be created.
        """
        self._folder = folder
        self._path = path
        self._part = f".{path.name}.{os.urandom(6).hex()}.part"
        try:
            self._held = os.open(self._part, os.O_WRONLY | _NEW, mode, dir_fd=folder)
        except BaseException:
            os.close(folder)
            raise
        self.file: BinaryIO = open(os.dup(self._held), "wb")  # noqa: SIM115  it is closed by `complete`

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.complete()
        else:
            self.discard()

    def complete(self) -> None:
        """Give the file its final name, and replace an existing file with this name.

        Raises:
            OSError: the file could not be written; its temporary file is removed.
        """
        try:
            self.file.close()
            if not _leads_to(self._folder, self._part, self._held):
                raise OSError(errno.EBUSY, "another process has replaced it", str(self._path))
            os.replace(self._part, self._path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            self.discard()
            raise
        self._close()

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._folder >= 0:
            with suppress(OSError):  # the disk is full
                self.file.close()
            with suppress(OSError):
                _remove_same(self._folder, self._part, self._held)
            self._close()

    def _close(self) -> None:
        os.close(self._held)
        os.close(self._folder)
        self._folder = -1


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open one of the user's output files for writing in pieces. It gets its name only when it is complete.

    Raises:
        OSError: the file cannot be written; the text of the error contains the file's path.
    """
    try:
        with begin_file(path) as file:
            yield file
    except OSError as error:
        raise _unwritten(path, error) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write one of the user's output files, completely or not at all.

    Raises:
        OSError: the file cannot be written; the text of the error contains the file's path.
    """
    with whole_file(path) as file:
        file.write(content)


def begin_file(path: Path) -> WholeFile:
    """Start one of the user's output files. It gets its name only when it is complete.

    Raises:
        OSError: the file cannot be created.
    """
    path = path.absolute()
    return WholeFile(os.open(path.parent, _FOLDER), path, mode=_NAMED_BY_USER)


def new_file(path: Path) -> int:
    """Create one of the user's output files and return its descriptor. An existing file is replaced.

    Raises:
        OSError: the file cannot be created.
    """
    begun = begin_file(path)
    descriptor = os.dup(begun.file.fileno())
    try:
        begun.complete()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def whole_file_by_name(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a library that writes by path. Afterwards, copy the file to `path`.

    The copy appears at `path` when it is complete, or not at all.

    Raises:
        SharedFolderError: another user can write to the folder of temporary files.
        OSError: the file cannot be written; the text of the error contains the file's path.
    """
    try:
        with OwnFolder.make(Path(tempfile.gettempdir()) / f"ullage-{os.urandom(8).hex()}") as place:
            try:
                yield place.path / path.name
                written = os.open(path.name, _READ | os.O_NOFOLLOW, dir_fd=place._descriptor)
                with open(written, "rb") as source, begin_file(path) as file:
                    shutil.copyfileobj(source, file)
            finally:
                place.remove(lambda _: True)
    except OSError as error:
        raise _unwritten(path, error) from None


@contextmanager
def nameless_file() -> Iterator[Path]:
    """Create a temporary file that other processes cannot open, and yield a path for this process.

    Raises:
        OSError: the disk is full.
    """
    with tempfile.TemporaryFile() as file:
        yield Path(f"/proc/self/fd/{file.fileno()}")


def others_can_write(found: os.stat_result) -> bool:
    """Return whether other users can remove files from a folder with these permissions."""
    if found.st_mode & stat.S_ISVTX:
        return False
    is_for_group = bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid, found.st_uid)
    return is_for_group or bool(found.st_mode & stat.S_IWOTH)


_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


# A folder that other users can write to may contain the new folder, because only this user can write to the new one.
def _make(path: Path, *, is_home_checked: bool) -> OwnFolder:
    home: OwnFolder | None = None
    try:
        parent = os.open(path.parent, _FOLDER)
    except FileNotFoundError:
        home = _make(path.parent, is_home_checked=False)
        parent = os.dup(home._descriptor)
    try:
        if is_home_checked:
            _refuse_foreign_link(path.parent)
            _refuse_shared(path.parent, os.fstat(parent))
    except BaseException:
        os.close(parent)
        raise
    return _made(parent, path, home=home)


def _made(parent: int, path: Path, *, home: OwnFolder | None) -> OwnFolder:
    try:
        os.mkdir(path.name, _OWNERS_FOLDER, dir_fd=parent)
        descriptor = os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except BaseException:
        os.close(parent)
        raise
    folder = OwnFolder(descriptor, path, parent=parent, home=home)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            text = f"another user has replaced the folder {path} by a different one; choose another location"
            raise SharedFolderError(text)
        if folder.names():  # put there by another process of this user, or by another user
            raise FileExistsError(errno.EEXIST, "the new folder is not empty", str(path))
    except BaseException:
        folder.close()
        raise
    return folder


def _refuse_shared(path: Path, found: os.stat_result) -> None:
    if others_can_write(found):
        raise SharedFolderError(
            f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):o}, no sticky bit) and could redirect "
            f"the files that are written there; run chmod go-w on it, or choose a folder of your own"
        )


def _refuse_foreign_link(path: Path) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise SharedFolderError(f"{path} is a symbolic link that another user created; choose a folder of your own")


# On many systems, each user has a group with the user's name and no other member.
def _is_private_group(group: int, owner: int) -> bool:
    try:
        found = grp.getgrgid(group)
        user = pwd.getpwuid(owner if group else 0)
    except KeyError:  # an ID without a name; in a container without any names, the group 0 is still root's
        return not group
    is_of_user = not group or (found.gr_name == user.pw_name and user.pw_gid == group)
    return is_of_user and set(found.gr_mem) <= {user.pw_name}


def _is_own_file(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _is_same(first: os.stat_result, second: os.stat_result) -> bool:
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _leads_to(folder: int, name: str, descriptor: int) -> bool:
    try:
        return _is_same(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_same(folder: int, name: str, descriptor: int) -> None:
    if _leads_to(folder, name, descriptor):
        os.unlink(name, dir_fd=folder)


# Two processes can create equal names, because processes in two containers that share a folder may have equal IDs.
def _other_name(name: str) -> str:
    stem, dot, suffix = name.partition(".")
    return f"{stem}-{os.urandom(3).hex()}{dot}{suffix}"


def _unwritten(path: Path, error: OSError) -> OSError:
    text = f"{error.strerror}; the file was not written, but the printed answer is complete"
    return OSError(error.errno, text, str(path))
