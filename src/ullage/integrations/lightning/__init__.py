"""Lightning: `GuardCallback` for automatic optimization, `guard` for manual optimization.

`MemoryCallback` logs memory.
"""

from ullage.integrations.lightning.automatic import GuardCallback
from ullage.integrations.lightning.manual import guard
from ullage.integrations.lightning.memory import MemoryCallback

__all__ = ["GuardCallback", "MemoryCallback", "guard"]
