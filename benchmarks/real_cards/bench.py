"""How one case is run: its files fetched, its environment made, its script started on the emulated card.

It does not know what is compared: that is each source's own.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ullage
from benchmarks.real_cards.case import HERE, Case, Origin
from benchmarks.real_cards.environment import environment_of, packages_of
from benchmarks.real_cards.source import SourceError, fetched

_MOST_SECONDS: Final = 3600
_PREDICTED: Final = (0, 1, 4)
"""What `ullage predict` ends with where the script ran: it fits, it does not, or what is outside PyTorch decides."""
_SAID: Final = 400  # letters of an error that a table can show


class RunError(Exception):
    """The script of a case did not end well; the text is the last that it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a script left."""

    returncode: int
    out: str
    error: str
    folder: Path
    """Where it ran and what it wrote lies."""

    def checked(self) -> "Ended":
        """Return it where it ended well.

        Raises:
            RunError: it did not.
        """
        if self.returncode:
            lines = [line for line in (self.error or self.out).strip().splitlines() if line.strip()]
            errors = [line for line in lines if re.match(r"(\[rank\d+\]: *)?\w[\w.]*(Error|Exception|Exit)\b", line)]
            said = (errors or lines)[-1][:_SAID] if lines else "nothing was said"
            raise RunError(f"the script ended with {self.returncode}: {said}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where everything is kept."""

    folder: Path
    """What is fetched and made, outside the tree."""
    environments: Path
    pattern: str
    """Where repositories are cloned from."""

    def files(self, origin: Origin) -> Path:
        """Return the folder with an origin's files."""
        return fetched(origin, self.folder / "sources", self.pattern)

    def versions(self, case: Case) -> dict[str, str]:
        """Return what torch says of itself in a case's environment, and the version of Python."""
        folder = self.environments / f"torch-{case.torch}-py{case.python}" / "lib" / f"python{case.python}"
        written = folder / "site-packages" / "torch" / "version.py"
        said = re.search(r"__version__ = '(.*)'", written.read_text()) if written.exists() else None
        return {"torch": said[1] if said else case.torch, "python": case.python, "ullage": ullage.__version__}

    def published(self, case: Case) -> Path:
        """Return the file that was published.

        Raises:
            SourceError: it is not there.
        """
        path = self.files(case.origins[0]) / case.file
        if not path.is_file():
            raise SourceError(f"{case.origins[0].text} has no {case.file} here (a mirror may lack large files)")
        return path

    def run(
        self,
        case: Case,
        script: Path,
        arguments: Sequence[str] = (),
        *,
        python_path: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        folder: str = ".",
        makes: Sequence[str] = (),
        seconds: float = _MOST_SECONDS,
    ) -> Ended:
        """Run a script on the case's card in a fresh folder, and return what it left.

        Args:
            case: whose card, environment and packages.
            script: somebody's own, or one of this folder's.
            arguments: of the script.
            python_path: folders that are imported from, before the packages of the case.
            variables: of the environment.
            folder: where it is started, inside the fresh folder.
            makes: folders that it expects there, from where it is started.
            seconds: after which it is ended.

        Raises:
            RunError: it took longer.
            SourceError: the environment could not be made.
        """
        command = [str(HERE / "child.py"), _card_of(case), str(script), *arguments]
        return self._ended(case, command, python_path, variables, folder, makes, seconds)

    def predicted(
        self,
        case: Case,
        options: Sequence[str],
        script: Path,
        arguments: Sequence[str] = (),
        *,
        python_path: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        seconds: float = _MOST_SECONDS,
    ) -> dict[str, Any]:
        """Return what `ullage predict` says of a script on the case's card: where one rank needs what another sends.

        Args:
            case: whose card, environment and packages.
            options: of `ullage predict`.
            script: somebody's own, or one of this folder's.
            arguments: of the script.
            python_path: folders that are imported from, before the packages of the case.
            variables: of the environment.
            seconds: after which it is ended.

        Raises:
            RunError: it took longer, or there is no prediction.
            SourceError: the environment could not be made.
        """
        asked = ["-m", "ullage", "predict", "--json", "--gpu", case.gpu, "--seconds", str(seconds), *options]
        ended = self._ended(case, [*asked, str(script), *arguments], python_path, variables, ".", (), seconds)
        if ended.returncode not in _PREDICTED or not ended.out:
            ended.checked()
        found: dict[str, Any] = json.loads(ended.out)
        return found

    def _ended(
        self,
        case: Case,
        command: Sequence[str],
        python_path: Sequence[Path],
        variables: Mapping[str, str] | None,
        folder: str,
        makes: Sequence[str],
        seconds: float,
    ) -> Ended:
        """Have the Python of the case's environment run a command in a fresh folder."""
        environment = environment_of(case.torch, case.python, self.environments)
        packages = packages_of(case.packages, case.beside_torch, environment, self.folder)
        place = self.folder / "runs" / case.source / case.name
        shutil.rmtree(place, ignore_errors=True)
        started = place / folder
        for each in (".", *makes):
            (started / each).mkdir(parents=True, exist_ok=True)
        settled = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [*python_path, *packages])),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool of processes may take five minutes to end
            **(variables or {}),
        }
        process = subprocess.Popen(
            [str(environment / "bin" / "python"), *command],
            cwd=started,
            env=settled,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, error = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise RunError(f"the script was ended after {seconds:.0f} seconds") from None
        return Ended(returncode=process.returncode, out=out, error=error, folder=started)


def _card_of(case: Case) -> str:
    """Return the card and its machine as `child.py` takes them."""
    given = {
        "total_memory_bytes": case.total_memory_bytes,
        "context_bytes": case.context_bytes,
        "cpus": case.cpus,
        "count": case.parameters.get("cards"),
    }
    known = {name: value for name, value in given.items() if value is not None}
    return json.dumps({"gpu": case.gpu, "placement": case.placement, **known})
