"""Which addresses webhooks may reach: checked when named, and at each connection."""
