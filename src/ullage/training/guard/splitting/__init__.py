"""Splitting a batch: how it is cut, how much each part's loss counts, and whether the losses of the parts sum to the
loss of the batch.
"""
