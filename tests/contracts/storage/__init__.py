"""The promises of every store, whatever medium it uses."""
