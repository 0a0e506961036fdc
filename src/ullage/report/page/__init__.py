"""Draw a report as an HTML page that needs no network, because it contains its scripts and styles."""
