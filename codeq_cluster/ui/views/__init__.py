"""Views: the parts of the page, one module each."""
