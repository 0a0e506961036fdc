"""The explanation of an error's text or a log: one cause, with figures that add up to the card."""
