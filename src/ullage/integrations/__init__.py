"""Adapters that connect ullage to training frameworks, pytest and notebooks. Import only the adapter that you need."""
