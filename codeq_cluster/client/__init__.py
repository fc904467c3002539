"""Client: the broker from outside, over HTTP; imports no server code."""
