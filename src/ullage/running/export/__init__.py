"""Exports the memory samples of `ullage run` (CSV, Parquet, Prometheus, OTLP), and memory snapshots (SQLite)."""
