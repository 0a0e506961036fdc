"""Adapters that connect ullage to training frameworks, pytest and notebooks."""
