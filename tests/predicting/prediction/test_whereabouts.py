"""Progress names what a script does while no step ends."""

import threading
from pathlib import Path

import pytest

from tests.shared.commands import SCRIPTS
from ullage.base.errors import ScriptError
from ullage.predicting.prediction.predict import Request, predict

LIBRARY = "import time\n\n\ndef download():\n    while True:\n        time.sleep(0.01)\n"


def with_line(said: str) -> str:
    """The text, with the number of the script's line that begins as what stands in braces."""
    start = said.partition("{")[2].partition("}")[0]
    lines = (SCRIPTS / "lingers.py").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.strip().startswith(start))
    return said.replace(f"{{{start}}}", str(number))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("waits", ("step 1 of 3, now at ", "lingers.py:{while not}; a loop seems to wait for a value (")),
        ("downloads", ("step 1 of 3, now in download (a_library.py:6), from ", "lingers.py:{a_library.d}")),
    ],
)
def test_progress_names_what_runs_when_no_step_does(tmp_path: Path, how: str, said: tuple[str, str]) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "a_library.py").write_text(LIBRARY)
    request = Request.of(SCRIPTS / "lingers.py", (how, str(folder)), gpu="T4", steps=3, values="off")
    told, is_found = [], threading.Event()

    def note(text: str) -> None:
        told.append(text)
        if said[0] in text and with_line(said[1]) in text:
            is_found.set()

    with pytest.raises(ScriptError, match="was cancelled"):
        predict(request, progress=note, cancelled=is_found.is_set)
    assert "step 1 of 3" in told
    assert is_found.is_set()
