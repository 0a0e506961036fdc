"""The analysis behind `ullage explain`. It shows what held GPU memory, why an allocation failed, and what would have
prevented the failure.
"""
