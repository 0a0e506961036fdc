"""What an error or a log says of memory that ran out: one cause, with figures that add up to the card."""
