"""The commands `ullage run`, `ullage watch` and `ullage doctor`, and exports of memory samples: CSV, Prometheus,
SQLite.
"""
