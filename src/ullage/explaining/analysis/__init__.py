"""The analysis behind `ullage explain`: what held memory, why a request failed, and what would have prevented it."""
