"""The files of a recorded run, and how they are written and read: samples, facts, evidence. Does not import torch."""
