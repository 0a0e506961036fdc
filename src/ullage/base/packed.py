"""Read gzip files and zip archives with one file, as users attach them to forum posts and emails.

A `torch.save` file is a zip archive, too; its only pickle is read. Nothing is unpacked to disk.
"""

import gzip
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import IO, Final, cast

from ullage.base.errors import UsageError, quoted

GZIP: Final = b"\x1f\x8b"
ZIP: Final = b"PK\x03\x04"
# macOS adds these files to every archive.
_BESIDE: Final = ("__MACOSX/", ".DS_Store")
_SAVED: Final = "/data.pkl"
_MOST_FILES: Final = 10_000


def unpacked(raw: BufferedReader, name: str) -> IO[bytes]:
    """Return a stream that decompresses a file, if it is compressed.

    Args:
        raw: the file, at its beginning.
        name: the name of the file for error messages.

    Raises:
        UsageError: the archive is encrypted, has no file or several files, or is read from a pipe.
        OSError: the archive is damaged or incomplete. Reading from the stream may raise this error too.
    """
    beginning = raw.peek(len(ZIP))[: len(ZIP)]
    if beginning.startswith(GZIP):
        return _stream_of(cast(IO[bytes], gzip.GzipFile(fileobj=raw)), "gzip data")
    if beginning != ZIP:
        return raw
    if not raw.seekable():
        raise UsageError(f"{name} is a zip archive from a pipe, which cannot be read; expected the path of the file")
    with _damage_named("zip archive"):
        return _stream_of(_only_file(zipfile.ZipFile(raw), name), "zip archive")


def _stream_of(stream: IO[bytes], kind: str) -> IO[bytes]:
    return cast(IO[bytes], _Unpacking(stream, kind))


class _Unpacking(io.BufferedIOBase):
    def __init__(self, stream: IO[bytes], kind: str) -> None:
        self._stream = stream
        self._kind = kind

    def read(self, size: int | None = -1, /) -> bytes:
        with _damage_named(self._kind):
            return self._stream.read(-1 if size is None else size)

    def close(self) -> None:
        self._stream.close()
        super().close()


# Python's modules raise many types of errors for damaged archives, such as struct.error or UnicodeDecodeError, and
# their texts contain bytes of the archive.
@contextmanager
def _damage_named(kind: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except EOFError:
        raise OSError(f"it is incomplete: the end of its {kind} is missing; copy it again") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's own error
            raise
        raise OSError(f"its {kind} is damaged; copy it again") from None


def _only_file(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    infos = archive.infolist()
    if len(infos) > _MOST_FILES:
        raise UsageError(f"{name} is a zip archive with {len(infos):,} files; unpack it and give one of the files")
    # `is_dir` is not used, because Python 3.11 raises an error for an entry without a name.
    files = [one for one in infos if not one.filename.endswith("/") and not one.filename.startswith(_BESIDE[0])]
    files = [one for one in files if not one.filename.endswith(_BESIDE[1])]
    saved = [one for one in files if one.filename.endswith(_SAVED)]
    chosen = saved if len(saved) == 1 else files
    if len(chosen) != 1:
        names = ", ".join(quoted(one.filename) for one in files[:3]) + (" ..." if len(files) > len(files[:3]) else "")
        holds = f"has {len(files)} files ({names})" if files else "does not contain a file"
        raise UsageError(
            f"{name} is a zip archive that {holds}; expected exactly one file; unpack the archive and give the file"
        )
    if chosen[0].flag_bits & 1:
        raise UsageError(f"{name} is an encrypted zip archive; unpack it and give the file in it")
    if chosen[0].compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):  # other compression methods could need any amount of memory
        raise UsageError(
            f"{name} is a zip archive with an unusual compression method; unpack it and give the file in it"
        )
    return archive.open(chosen[0])
