"""The analysis of `ullage explain`. It shows what held memory, why a request failed, and what would have prevented the
failure.
"""
