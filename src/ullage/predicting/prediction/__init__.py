"""Run a script on an emulated GPU to predict how much GPU memory it needs, and whether it fits."""
