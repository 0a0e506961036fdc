"""Run the ranks of a distributed script separately, and exchange messages between them."""
