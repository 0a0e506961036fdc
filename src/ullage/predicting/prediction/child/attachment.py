"""What ties the processes of a predicted command to the parent that listens to them: a variable of the environment."""

import json
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final

from ullage.predicting.prediction.data.plain_data import from_plain, to_plain
from ullage.predicting.prediction.request import ChildRequest

VARIABLE: Final = "ULLAGE_PREDICTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What every process of a predicted command knows."""

    address: str
    """The name of the parent's socket, in the kernel's abstract namespace."""
    request: ChildRequest
    processes: str
    """The processes of a launcher that run: one of `ullage.predicting.prediction.request.PROCESSES`."""
    nodes: int
    """The number of machines that the command as it was typed is one of."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Have every Python process with this environment be measured."""
        environment[VARIABLE] = json.dumps(to_plain(self))

    @classmethod
    def inherited(cls) -> "Attachment":
        """Return what the process that started this one has put into the environment."""
        return from_plain(cls, json.loads(os.environ[VARIABLE]))
