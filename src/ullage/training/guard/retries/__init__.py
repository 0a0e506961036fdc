"""Forward and backward of a batch: the order in which plans are tried, which plans succeeded before, and ways to need
less memory.
"""
