"""Splits a batch into parts, and tests whether the losses of the parts sum up to the loss of the batch."""
