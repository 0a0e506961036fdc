"""Splitting a batch: how it is cut, the weight of each part's loss, and whether the losses of the parts sum up."""
