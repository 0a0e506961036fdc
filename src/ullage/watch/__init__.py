"""A live view of the cards and of what runs on them."""
