"""Lightning: `GuardCallback` for automatic optimization, `guard` for a module that optimizes by itself.

`MemoryCallback` logs memory.
"""

from ullage.integrations.lightning.automatic import GuardCallback
from ullage.integrations.lightning.manual import guard
from ullage.integrations.lightning.memory import MemoryCallback

__all__ = ["GuardCallback", "MemoryCallback", "guard"]
