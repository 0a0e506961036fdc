"""Measure a real GPU (`make gpu`) and compare the record with the emulated GPU (`make gpu-compare`)."""
