"""Adapters to other programs: training frameworks, pytest, notebooks. Import the module you need."""
