"""A process that reads the snapshots of ranks. It receives requests and sends responses as lines of JSON.

Every worker is a separate process for two reasons. Reading a snapshot holds Python's global interpreter lock, in C++ as
well as in Python. And if a damaged file crashes a reader, the other readers are not affected.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ullage.base.child_process import tie_to_parent
from ullage.base.errors import UllageError
from ullage.explaining.fleet.rank_summary import summary_of


def main() -> None:
    """Read the snapshots that the parent process requests, until it closes the pipe."""
    tie_to_parent()
    requests, answers = int(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(answers, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(answer_to(json.loads(line))) + "\n")
            out.flush()


def answers(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Return the memory figures of several ranks. A worker of an execution engine calls this function."""
    paths, is_whole = payload["paths"], payload["is_whole"]
    return {"answers": [answer_to({"path": path, "is_whole": is_whole}) for path in paths if not cancelled()]}


def answer_to(request: dict[str, object]) -> dict[str, object]:
    """Return the memory figures of one rank. If its snapshot is unreadable, return {"error": the reason}."""
    try:
        return {"summary": summary_of(Path(str(request["path"])), is_whole=bool(request["is_whole"])).to_json()}
    except (UllageError, OSError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"{request['path']} needs more memory to read than this process may use"}
    except Exception as error:  # An unexpected kind of file must not affect the other ranks.
        return {"error": f"{request['path']} cannot be explained: {type(error).__name__}: {error}"}
