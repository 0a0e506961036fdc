"""Infers the role of each block in a recorded run from stacks, lifetimes and sizes. The script is not needed."""

from ullage.explaining.analysis.role.role import ROLES, RoleColumns, Sureness, roles_of
from ullage.explaining.analysis.role.share import RoleShare, role_shares

__all__ = ["ROLES", "RoleColumns", "RoleShare", "Sureness", "role_shares", "roles_of"]
