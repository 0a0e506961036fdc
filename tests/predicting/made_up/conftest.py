"""Run `ullage predict` on scripts whose weights and data are not here."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.forked import client
from tests.shared.commands import Ended, Predict, command, environment_of

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def predict(workplace: Path) -> Predict:
    """Run `ullage predict` with a script of ours, and with no network."""

    def run(script: str | Path, *arguments: object, options: tuple[object, ...] = (), **changes: str) -> Ended:
        process = client.run(
            command("--gpu", "T4", *options, SCRIPTS / script, *arguments),
            cwd=workplace,
            env=environment_of(workplace, **offline(workplace) | changes),
            timeout=900,
        )
        return Ended(code=process.returncode, out=process.stdout, error=process.stderr)

    return run


def offline(workplace: Path) -> dict[str, str]:
    """Variables with which nothing is found but in folders."""
    home = str(workplace / "home")
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": home,
        "TORCH_HOME": home,
        "http_proxy": "http://127.0.0.1:1",
        "https_proxy": "http://127.0.0.1:1",
    }


@contextmanager
def gated_hub(status: int) -> Iterator[dict[str, str]]:
    """Serve what the hub answers of a gated repository: 401 to nobody, 403 to whoever has no access.

    Gives the variables with which huggingface_hub asks there.
    """

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("X-Error-Message", "Access to model someone/unknown is restricted.")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            own = f"http://127.0.0.1:{server.server_port}"
            yield {"HF_ENDPOINT": own, "HF_HUB_OFFLINE": "0", "no_proxy": "127.0.0.1", "HF_TOKEN": "hf_nobodys"}
        finally:
            server.shutdown()
            thread.join()
