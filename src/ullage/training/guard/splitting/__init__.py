"""Splits a batch into parts: how tensors are cut, how the losses of the parts are weighted, and whether these sum up to
the batch's loss.
"""
