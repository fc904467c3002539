"""From settings to a running node, and back: what joins the features into one process."""
