"""The OpenAPI document, generated from the routes and the types of their bodies."""
