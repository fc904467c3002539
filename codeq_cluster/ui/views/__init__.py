"""Views: what each part of the page shows, one module each."""
