"""Exports of a run's memory samples and of recordings: CSV, Parquet, Prometheus, OTLP and SQLite."""
