"""Infers what each block was used for, such as gradients or activations. It needs only stacks, lifetimes and sizes, not
the script.
"""

from ullage.explaining.analysis.role.role import ROLES, RoleColumns, Sureness, roles_of
from ullage.explaining.analysis.role.share import RoleShare, role_shares

__all__ = ["ROLES", "RoleColumns", "RoleShare", "Sureness", "role_shares", "roles_of"]
