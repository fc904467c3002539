"""The HTTP front end: any client's requests, answered exactly as the contract says."""
