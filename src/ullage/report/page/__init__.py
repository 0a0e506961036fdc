"""Draw a report as an HTML page that contains its scripts and styles and needs no network."""
