"""What values on an emulated card are: known, drawn, or unknown."""
