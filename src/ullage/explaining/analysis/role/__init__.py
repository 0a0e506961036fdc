"""What each block of a recorded run was for: told by stacks, lives and sizes, without the script."""

from ullage.explaining.analysis.role.role import ROLES, RoleColumns, Sureness, roles_of
from ullage.explaining.analysis.role.share import RoleShare, role_shares

__all__ = ["ROLES", "RoleColumns", "RoleShare", "Sureness", "role_shares", "roles_of"]
