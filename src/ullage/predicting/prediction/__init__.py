"""Running a script on an emulated GPU to predict how much memory it needs, and whether it fits."""
