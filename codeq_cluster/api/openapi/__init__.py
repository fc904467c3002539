"""The OpenAPI document, made from the routes and the types of their bodies."""
