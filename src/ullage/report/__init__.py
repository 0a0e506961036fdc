"""Reports and their renderers for terminals and HTML pages. They do not depend on how the content was computed."""
