"""Weights and data that are not here."""
