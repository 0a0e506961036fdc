"""The explanation of an error message or a log: one cause, with figures that add up to the GPU's memory."""
