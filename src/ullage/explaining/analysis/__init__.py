"""The analysis behind `ullage explain`. It shows what held GPU memory, and why an allocation failed."""
