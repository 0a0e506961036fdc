"""The commands `ullage run`, `ullage watch` and `ullage doctor`, and the export of memory samples."""
