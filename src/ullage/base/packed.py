"""Files that were packed to be sent: gzip, or a zip archive that holds one file, as threads and mails want them.

What `torch.save` writes is such an archive too, and its one pickle is what was saved. Nothing is written anywhere.
"""

import gzip
import zipfile
import zlib
from io import BufferedReader
from typing import IO, Final, cast

from ullage.base.errors import UsageError, quoted

GZIP: Final = b"\x1f\x8b"
ZIP: Final = b"PK\x03\x04"
DAMAGED: Final = (EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError)
"""Errors that reading a damaged packed file raises, beside OSError."""
_BESIDE: Final = ("__MACOSX/", ".DS_Store")
"""Files that macOS adds to every archive."""
_SAVED: Final = "/data.pkl"
_MOST_FILES: Final = 10_000


def unpacked(raw: BufferedReader, name: str) -> IO[bytes]:
    """Return the content of a file that may be packed, as a stream.

    Args:
        raw: the file, at its beginning.
        name: how the file is called in an error's text.

    Raises:
        UsageError: it is an archive of several files, or of none, or encrypted, or comes through a pipe.
        OSError: it is damaged; or one of `DAMAGED`.
    """
    beginning = raw.peek(len(ZIP))[: len(ZIP)]
    if beginning.startswith(GZIP):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if beginning != ZIP:
        return raw
    if not raw.seekable():
        raise UsageError(f"{name} gives a zip archive, which cannot be read from a pipe; give the path of its file")
    return _only_file(zipfile.ZipFile(raw), name)


def _only_file(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    infos = archive.infolist()
    if len(infos) > _MOST_FILES:
        raise UsageError(f"{name} is a zip archive of {len(infos):,} files; unpack it, and give one of them")
    # Not `is_dir`, which Python 3.11 cannot answer of a file without a name.
    files = [one for one in infos if not one.filename.endswith("/") and not one.filename.startswith(_BESIDE[0])]
    files = [one for one in files if not one.filename.endswith(_BESIDE[1])]
    saved = [one for one in files if one.filename.endswith(_SAVED)]
    chosen = saved if len(saved) == 1 else files
    if len(chosen) != 1:
        names = ", ".join(quoted(one.filename) for one in files[:3]) + (" ..." if len(files) > len(files[:3]) else "")
        holds = f"holds {len(files)} files ({names})" if files else "holds no file"
        raise UsageError(f"{name} is a zip archive that {holds}; unpack it, and give the one that you mean")
    if chosen[0].flag_bits & 1:
        raise UsageError(f"{name} is an encrypted zip archive; unpack it, and give what is in it")
    if chosen[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others may ask for any memory
        raise UsageError(f"{name} is a zip archive of an unusual kind; unpack it, and give what is in it")
    return archive.open(chosen[0])
