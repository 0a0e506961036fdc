"""A live view of the cards and of the processes on them."""
