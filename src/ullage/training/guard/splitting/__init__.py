"""Splits a batch into parts, weights the losses of the parts, and tests whether these losses sum up to the batch's
loss.
"""
