"""Fetch what a case needs: a repository at a commit from GitHub or from a mirror, or a source distribution from PyPI.

Nothing of what is fetched is committed: it stays in a folder outside the tree. It is fetched once. Files that are
larger than a mirror keeps are missing there; only the paths that a case names are checked out.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from benchmarks.real_cards.case import Origin

GITHUB: Final = "https://github.com/{owner}/{name}"
_QUIET: Final = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}


class SourceError(Exception):
    """What a case needs cannot be had; the text says why, in one sentence."""


def fetched(origin: Origin, folder: Path, pattern: str) -> Path:
    """Return the folder with the files of an origin, fetching them when they are not there yet.

    Args:
        origin: what is wanted.
        folder: where it is kept.
        pattern: where a repository is cloned from, with {owner} and {name}.

    Raises:
        SourceError: it cannot be had.
    """
    place = folder / origin.name.replace("/", "+") / origin.revision
    ready = place.with_name(f"{place.name}.ready")
    wanted = "\n".join(origin.paths)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"fetching {origin.text}", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (_clone if origin.is_repository else _download)(origin, place, pattern)
        ready.write_text(wanted)
    return place


def _clone(origin: Origin, place: Path, pattern: str) -> None:
    """Put the origin's paths into a folder, as they are at the commit."""
    owner, name = origin.name.split("/")
    bare = place.with_name("git")
    if not _has(bare, origin.revision):
        shutil.rmtree(bare, ignore_errors=True)
        address = pattern.format(owner=owner, name=name)
        # Without blobs: histories may hold gigabytes. A mirror's folder gives what it has.
        _git("clone", "--quiet", "--bare", "--filter=blob:none", address, str(bare), what=origin.text)
        if not _has(bare, origin.revision):
            _git("-C", str(bare), "fetch", "--quiet", "origin", origin.revision, what=origin.text)
    tree = ["-C", str(bare), "-c", "core.bare=false", "--work-tree", str(place)]
    _git(*tree, "checkout", "--quiet", "--force", origin.revision, "--", *origin.paths, what=origin.text)


def _has(bare: Path, commit: str) -> bool:
    if not bare.exists():
        return False
    command = ["git", "-C", str(bare), "cat-file", "-e", f"{commit}^{{tree}}"]
    return not subprocess.run(command, env=_QUIET, stderr=subprocess.DEVNULL, check=False).returncode


def _git(*arguments: str, what: str) -> None:
    ended = subprocess.run(["git", *arguments], env=_QUIET, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["git said nothing"]
        raise SourceError(f"{what} cannot be had: {said[-1]}")


def _download(origin: Origin, place: Path, _: str) -> None:
    """Unpack a source distribution; its one folder becomes the place."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    wanted = ["--no-binary", origin.name, "--dest", str(place), f"{origin.name}=={origin.revision}"]
    ended = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
    archives = list(place.glob("*.tar.gz"))
    if ended.returncode or not archives:
        said = ended.stderr.strip().splitlines() or ["pip said nothing"]
        raise SourceError(f"{origin.text} cannot be had from PyPI: {said[-1]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(place, filter="data")
    archives[0].unlink()
    inner = [entry for entry in place.iterdir() if entry.is_dir()]
    for entry in list(inner[0].iterdir()):
        entry.rename(place / entry.name)
    inner[0].rmdir()
