"""Stop asking the Hugging Face hub after the first failed connection, so that a script does not wait for retries."""

# Each of a script's calls asks for many files, and huggingface_hub repeats a failed request five times with pauses:
# without a network, loading one tokenizer takes minutes. The library's own offline mode ends that.

import os
import sys
from collections.abc import Callable
from typing import Any, Final

from ullage.predicting.made_up.standing_in import around, when_imported

# These modules keep the library's setting under these names, with which they were imported.
_SETTINGS: Final = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
    ("transformers.utils.hub", "_is_offline_mode"),  # transformers 4
    ("datasets.config", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_DATASETS_OFFLINE"),
    ("evaluate.config", "HF_EVALUATE_OFFLINE"),
)


def install(note: Callable[[str], None]) -> None:
    """Set the hub's libraries to offline mode after the first connection that fails, and call `note` with a sentence
    about that.
    """

    def watch(http: Any) -> None:
        # huggingface_hub sends requests with `requests` before version 1.0, with httpx or httpx2 since then.
        if hasattr(http, "UniqueRequestIdAdapter"):
            failures: Any = http.requests.exceptions.ConnectionError  # also if a connection takes too long
            around(http.UniqueRequestIdAdapter, "send", _Sender(http, failures, note))
        for library in filter(None, (getattr(http, "httpx", None), getattr(http, "httpx2", None))):
            failures = (library.ConnectError, library.ConnectTimeout, library.ProxyError)
            around(library.Client, "send", _Sender(http, failures, note))

    when_imported("huggingface_hub.utils._http", watch)


class _Sender:
    def __init__(self, http: Any, failures: Any, note: Callable[[str], None]) -> None:
        self._http = http
        self._failures = failures
        self._note = note

    def __call__(self, original: Callable[..., Any], this: Any, request: Any, *arguments: Any, **keywords: Any) -> Any:
        hub = self._http.constants.ENDPOINT
        is_asked = str(request.url).startswith(hub)
        if is_asked and self._http.constants.HF_HUB_OFFLINE:  # a retry, with a session from before
            raise self._http.OfflineModeIsEnabled(f"Cannot reach {request.url}: offline mode is enabled.")
        try:
            return original(this, request, *arguments, **keywords)
        except self._failures:
            if is_asked:
                self._go_offline(hub)
            raise

    def _go_offline(self, hub: str) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # for the script's other processes
        for module, name in _SETTINGS:
            if hasattr(sys.modules.get(module), name):
                setattr(sys.modules[module], name, True)
        if hasattr(self._http, "reset_sessions"):  # before version 1.0 a session keeps the setting
            self._http.reset_sessions()
        self._note(
            f"no connection to {hub}: after the first failed connection, ullage set HF_HUB_OFFLINE=1, so that the "
            "script uses only files of this machine; to download files, check the network and run it again"
        )
