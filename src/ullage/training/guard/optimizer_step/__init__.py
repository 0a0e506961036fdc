"""The optimizer's step: tested in advance without writing, and completed if memory runs out in the middle."""
