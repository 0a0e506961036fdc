"""Lightning: `GuardCallback` for automatic optimization, `guard` for a module that optimizes by itself."""

from ullage.integrations.lightning.automatic import GuardCallback
from ullage.integrations.lightning.manual import guard

__all__ = ["GuardCallback", "guard"]
