"""The explanation of an error message or a log. It has one cause, and figures that add up to the GPU's memory."""
