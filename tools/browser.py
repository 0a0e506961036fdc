"""A page in Chromium, spoken to over the browser's own debugging pipe: no driver program, no network, no other package.

Used by the tests of pages, by benchmarks/page.py and by tools/pictures.py.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

BROWSER: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", "--hide-scrollbars", "about:blank"),
)
_WATCH: Final = """
window.stalls = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) stalls.push([entry.startTime, entry.duration]);
}).observe({type: "longtask", buffered: true});
"""


class BrowserError(Exception):
    """The browser refused a command, or ended."""


class Browser:
    """One page in a browser of its own; `errors` has what its console said, `requests` what it asked the network."""

    def __init__(self) -> None:
        if BROWSER is None:
            raise BrowserError("no Chromium on this machine (Debian: apt-get install chromium)")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="ullage-browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads commands from its descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        line = ["bash", "-c", script, BROWSER, f"--user-data-dir={self._folder}", *_FLAGS]
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(
            line, pass_fds=(theirs_in, theirs_out), stdin=silent, stdout=silent, stderr=silent
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        targets = self.command("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.command("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")
        self.command("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._out)  # at which it ends
        os.close(self._in)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, method: str, **parameters: Any) -> Any:
        """Send a command of Chrome's protocol and return its answer; what happens meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise BrowserError("the browser ended")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(told["args"])[:2000])
            case "Log.entryAdded":
                self.errors.append(str(told["entry"]["text"]))
            case "Network.requestWillBeSent":
                address = str(told["request"]["url"])
                if not address.startswith(("file:", "data:", "blob:")):
                    self.requests.append(address)

    def open(self, page: Path, *, width: int, height: int = 1000, dark: bool = False) -> None:
        """Show a file in a window of this size."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, or of what it promises."""
        done = self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise BrowserError(json.dumps(done["exceptionDetails"])[:2000])
        return done["result"].get("value")

    def wait(self, condition: str, *, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise BrowserError(f"never true: {condition}\n" + "\n".join(self.errors))
            time.sleep(0.02)

    def drawn(self) -> None:
        """Wait until the picture of blocks is drawn, and nothing is left to draw."""
        self.wait("[...document.querySelectorAll('section.blocks')].every((each) => each.dataset.drawn)")
        self.wait("[...document.querySelectorAll('section.blocks')].every((each) => !each.explorer.isBusy)")

    def mouse(self, kind: str, x: float, y: float, *, pressed: bool = False) -> None:
        """Move, press or release the mouse at a place of the window."""
        names = {"move": "mouseMoved", "press": "mousePressed", "release": "mouseReleased"}
        button = "left" if pressed or kind != "move" else "none"
        count = 0 if kind == "move" else 1
        self.command(
            "Input.dispatchMouseEvent",
            type=names[kind],
            x=x,
            y=y,
            button=button,
            buttons=int(pressed),
            clickCount=count,
        )

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is seen, or the whole page."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
