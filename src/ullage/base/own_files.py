"""Everything that this package makes on a disk, and removes from it again.

Others may be able to write where we write. They can lay links in our way, put a folder of theirs or of the user's in
the place of ours, and foresee names that are made of a time and a process. So whatever is made is made new, by the
descriptor of its folder, under a name that nobody can foresee, and without following a link to it. It is for its owner
alone, unless the user has named the file. What is removed is what was made: a name is taken away only where it still
leads to the file that is open here.
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
_NAMED_BY_USER: Final = 0o666  # less the umask, as of any file that a user has a program write
_TRIES: Final = 8

Made = TypeVar("Made")


@public
class SharedFolderError(UsageError):
    """Raised for a folder that others can write to, or that is not the one that was made."""


class OwnFolder(AbstractContextManager["OwnFolder"]):
    """A folder of this user's that is held open: whatever is done to its name, it is this folder that is written."""

    def __init__(self, descriptor: int, path: Path, *, parent: int | None = None, home: "OwnFolder | None" = None):
        """Hold a folder; use `make`, `make_unique` or `open`.

        Args:
            descriptor: of the folder; it is closed with this object.
            path: the path by which it was made or found.
            parent: a descriptor of the folder that it was made in, which is closed, too; None if it was found.
            home: the folder that it was made in, if that was made for it.
        """
        self.path = path
        self._descriptor = descriptor
        self._parent = parent
        self._home = home

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def make(cls, path: Path) -> "OwnFolder":
        """Make a folder that does not exist, and those above it that are missing.

        Raises:
            SharedFolderError: others can write to the folder in which it would be.
            OSError: it exists, or cannot be made.
        """
        return _make(path.absolute(), is_home_checked=True)

    @classmethod
    def make_unique(cls, home: Path, name: str) -> "OwnFolder":
        """Make a folder NAME-TIME-RANDOM in another one, which is made where it is missing.

        Raises:
            SharedFolderError: others can write to that other folder.
            OSError: it cannot be made.
        """
        for _ in range(_TRIES):
            unique = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
            # Another run has just made the other folder and begun in it, or has ended and removed it.
            with suppress(FileExistsError, FileNotFoundError):
                return cls.make(home / unique)
        raise OSError(errno.EEXIST, "what is made there is removed or there already", str(home))

    @classmethod
    def open(cls, path: Path, *, inode: int | None = None) -> "OwnFolder":
        """Open a folder that exists.

        Args:
            path: its path; it may not be a link.
            inode: the number that it had when it was made; None: any folder of this user's is the one.

        Raises:
            SharedFolderError: it is another one, somebody else's, or others can write to it.
            OSError: it is not there, or is no folder.
        """
        return cls(os.open(path, _FOLDER | os.O_NOFOLLOW), path.absolute())._checked(inode)

    @classmethod
    def open_or_make(cls, path: Path) -> "OwnFolder":
        """Open a folder of this user's, and make it where it is missing.

        Raises:
            SharedFolderError: it is somebody else's, or others can write to it or to the folder that it is in.
            OSError: it cannot be opened or made.
        """
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                return cls.open(path)
            with suppress(FileExistsError):  # another process has made it meanwhile, or only what it is to lie in
                return cls.make(path)
        return cls.open(path)

    @property
    def inode(self) -> int:
        """The number of the folder in its file system."""
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
        """Whether the folder is no more, under whatever name."""
        return not os.fstat(self._descriptor).st_nlink

    def names(self) -> list[str]:
        """Return the names of everything in the folder."""
        return os.listdir(self._descriptor)

    def folder(self, name: str) -> "OwnFolder":
        """Open a folder in this one.

        Raises:
            SharedFolderError: it is somebody else's, or others can write to it.
            OSError: it is not there, or is no folder.
        """
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor)
        return OwnFolder(descriptor, self.path / name)._checked(None)

    def make_folder(self, name: str) -> "OwnFolder":
        """Make a new folder in this one. If the name is taken, another one is added to it.

        Raises:
            OSError: it cannot be made.
        """
        return self._with_free_name(name, lambda free: _made(os.dup(self._descriptor), self.path / free, home=None))

    def new_file(self, name: str) -> tuple[int, Path]:
        """Make a new file to read and write; return its descriptor and path. If the name is taken, one is added to it.

        Raises:
            OSError: it cannot be made.
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
        """Return the beginning of a file of this user's.

        Raises:
            OSError: it is not there, is a link, a pipe or a device, or somebody else's.
        """
        with open(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=self._descriptor), "rb") as file:
            if not _is_own_file(file.fileno()):
                raise OSError(errno.EINVAL, "it is no file, or another user's", str(self.path / name))
            return file.read(most_bytes)

    def remove_file(self, name: str, descriptor: int) -> None:
        """Remove a file, if its name still leads to the one that is open."""
        _remove_same(self._descriptor, name, descriptor)

    def whole_file(self, name: str) -> "WholeFile":
        """Begin a file that appears under its name once complete."""
        return WholeFile(os.dup(self._descriptor), self.path / name, mode=_OWNERS_FILE)

    def write_whole(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, in place of one that has this name.

        Raises:
            OSError: it cannot be written.
        """
        with self.whole_file(name) as file:
            file.write(content)

    def remove(self, is_ours: Callable[[int], bool]) -> None:
        """Remove the folder with its files, and the folder that was made for it; where one is not ours, all is left.

        Args:
            is_ours: tells of an open file in the folder whether this package has made it.
        """
        held: dict[str, int] = {}
        try:
            for name in self.names():
                held[name] = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=self._descriptor)
            if all(_is_own_file(descriptor) and is_ours(descriptor) for descriptor in held.values()):
                for name, descriptor in held.items():
                    self.remove_file(name, descriptor)
                self._remove_empty()
        except OSError:  # a link, a pipe, a folder: none of ours
            return
        finally:
            for descriptor in held.values():
                os.close(descriptor)

    def remove_tree(self) -> None:
        """Remove the folder with all that is in it: nobody but this user could have put anything there.

        Raises:
            OSError: something cannot be removed, or was put there meanwhile.
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
        """Close the descriptors."""
        for descriptor in (self._descriptor, self._parent):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._descriptor, self._parent = -1, None
        if self._home is not None:
            self._home.close()

    def _remove_empty(self) -> None:
        """Remove the folder if it is empty, and then the one that was made for it."""
        if self._parent is not None and _leads_to(self._parent, self.path.name, self._descriptor):
            os.rmdir(self.path.name, dir_fd=self._parent)
            if self._home is not None:
                self._home._remove_empty()

    def _checked(self, inode: int | None) -> Self:
        """Return the folder if it is the one that is meant and this user's alone; else close it, and raise."""
        try:
            found = os.fstat(self._descriptor)
            if inode not in (None, found.st_ino) or found.st_uid != os.geteuid():
                raise SharedFolderError(f"{self.path} is another folder than the one that was made, or another user's")
            _refuse_shared(self.path, found)
        except BaseException:
            self.close()
            raise
        return self


class WholeFile:
    """A file that is written in pieces and appears under its name once complete; a context, or by its methods."""

    def __init__(self, folder: int, path: Path, *, mode: int) -> None:
        """Begin the file under a name of its own.

        Args:
            folder: a descriptor of the folder, which is closed in the end.
            path: what the file is called in it once complete.
            mode: who may read and write it.

        Raises:
            OSError: it cannot be made.
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
        """Put the file under its name, in place of what is there.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        try:
            self.file.close()
            if not _leads_to(self._folder, self._part, self._held):
                raise OSError(errno.EBUSY, "somebody else has taken its place", str(self._path))
            os.replace(self._part, self._path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            self.discard()
            raise
        self._close()

    def discard(self) -> None:
        """Remove what was written."""
        if self._folder >= 0:
            with suppress(OSError):  # a full disk
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
    """Open a file that the user has named, to write in pieces; it appears under its name once complete, or not at all.

    Raises:
        OSError: it cannot be written; the error names the file.
    """
    try:
        with begin_file(path) as file:
            yield file
    except OSError as error:
        raise _unwritten(path, error) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that the user has named whole or not at all.

    Raises:
        OSError: it cannot be written; the error names the file.
    """
    with whole_file(path) as file:
        file.write(content)


def begin_file(path: Path) -> WholeFile:
    """Begin a file that the user has named, and that appears under its name once complete.

    Raises:
        OSError: it cannot be made.
    """
    path = path.absolute()
    return WholeFile(os.open(path.parent, _FOLDER), path, mode=_NAMED_BY_USER)


def new_file(path: Path) -> int:
    """Make a file that the user has named, in place of one that is there; return a descriptor to write it.

    Raises:
        OSError: it cannot be made.
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
    """Do as `whole_file` for a library that wants a name: of a file in a new temporary folder, which is copied then.

    Raises:
        SharedFolderError: others can write to the folder of temporary files.
        OSError: it cannot be written; the error names the file.
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
    """Make a temporary file that has no name, so that nobody can open it; yield a path for this process alone.

    Raises:
        OSError: there is no room for it.
    """
    with tempfile.TemporaryFile() as file:
        yield Path(f"/proc/self/fd/{file.fileno()}")


def others_can_write(found: os.stat_result) -> bool:
    """Tell whether others than a folder's owner can take away what is in it: by its mode, and without a sticky bit."""
    if found.st_mode & stat.S_ISVTX:
        return False
    is_for_group = bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid, found.st_uid)
    return is_for_group or bool(found.st_mode & stat.S_IWOTH)


_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def _make(path: Path, *, is_home_checked: bool) -> OwnFolder:
    """Make a folder. The one that it is in is made where it is missing, whatever that is in: it is for us alone."""
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
    """Make a new folder in one that is open, whose descriptor it takes over, and make sure that it is this one."""
    try:
        os.mkdir(path.name, _OWNERS_FOLDER, dir_fd=parent)
        descriptor = os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except BaseException:
        os.close(parent)
        raise
    folder = OwnFolder(descriptor, path, parent=parent, home=home)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            text = f"somebody else has put another folder in the place of {path}; choose another place"
            raise SharedFolderError(text)
        if folder.names():  # of another process of this user's, or put there by somebody else
            raise FileExistsError(errno.EEXIST, "something is in it already", str(path))
    except BaseException:
        folder.close()
        raise
    return folder


def _refuse_shared(path: Path, found: os.stat_result) -> None:
    if others_can_write(found):
        raise SharedFolderError(
            f"others can write to {path} (mode {stat.S_IMODE(found.st_mode):o}, no sticky bit), and could lay links in "
            f"the way of what is written; take that right away (chmod go-w), or choose a folder of your own"
        )


def _refuse_foreign_link(path: Path) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise SharedFolderError(f"{path} is a link that another user has laid; choose a folder of your own")


def _is_private_group(group: int, owner: int) -> bool:
    """Tell whether a group has no member but the owner: on many systems each user has one of the same name."""
    try:
        found = grp.getgrgid(group)
        user = pwd.getpwuid(owner if group else 0)
    except KeyError:  # a number without a name; of a container that has none at all, root's is still root's
        return not group
    is_of_user = not group or (found.gr_name == user.pw_name and user.pw_gid == group)
    return is_of_user and set(found.gr_mem) <= {user.pw_name}


def _is_own_file(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _is_same(first: os.stat_result, second: os.stat_result) -> bool:
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _leads_to(folder: int, name: str, descriptor: int) -> bool:
    """Tell whether a name in a folder is that of an open file."""
    try:
        return _is_same(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_same(folder: int, name: str, descriptor: int) -> None:
    if _leads_to(folder, name, descriptor):
        os.unlink(name, dir_fd=folder)


def _other_name(name: str) -> str:
    """Return a name like one that is taken, as where two containers with the same process numbers share a folder."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}-{os.urandom(3).hex()}{dot}{suffix}"


def _unwritten(path: Path, error: OSError) -> OSError:
    text = f"{error.strerror}; the file was not written, but the printed answer is complete"
    return OSError(error.errno, text, str(path))
