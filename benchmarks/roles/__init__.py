"""Roles that `ullage explain` tells, beside those that `ullage predict` knows: `make roles`."""
