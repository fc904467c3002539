"""Testing: a broker for the tests of programs that use codeq-cluster."""
