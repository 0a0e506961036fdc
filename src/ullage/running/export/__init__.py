"""Exports of the memory samples of `ullage run` (CSV, Parquet, Prometheus, OTLP) and of memory snapshots (SQLite)."""
