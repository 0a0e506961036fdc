"""Adapters to other programs: training frameworks, pytest and notebooks. Import the adapter that you need."""
