"""Exports samples of a run to other programs: CSV, Parquet, Prometheus."""
