"""The process that reads ranks' snapshots: a request as a line of JSON, its answer as another.

A process of its own for each worker, because a snapshot is read in C++ and Python that hold the interpreter's lock, and
because what a damaged file does to a reader it does to that one alone.
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
    """Answer until the parent closes its end."""
    tie_to_parent()
    requests, answers = int(sys.argv[2]), int(sys.argv[3])
    with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(answers, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(answer_to(json.loads(line))) + "\n")
            out.flush()


def answers(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Return the figures of several ranks, as an engine asks for them: `answer_to` for each path."""
    paths, is_whole = payload["paths"], payload["is_whole"]
    return {"answers": [answer_to({"path": path, "is_whole": is_whole}) for path in paths if not cancelled()]}


def answer_to(request: dict[str, object]) -> dict[str, object]:
    """Return a rank's figures, or in "error" why it has none."""
    try:
        return {"summary": summary_of(Path(str(request["path"])), is_whole=bool(request["is_whole"])).to_json()}
    except (UllageError, OSError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"{request['path']} is larger than the memory this process may use"}
    except Exception as error:  # of a file that no reader foresaw: the other ranks are not to suffer from it
        return {"error": f"{request['path']} cannot be explained: {type(error).__name__}: {error}"}
