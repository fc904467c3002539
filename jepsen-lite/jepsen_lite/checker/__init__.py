"""Checkers: each a function from a history to a verdict on one guarantee."""

from jepsen_lite.checker.judging import Judgement, judge
from jepsen_lite.checker.validity import Demands
from jepsen_lite.checker.verdict import Verdict, Violation

__all__ = ["Demands", "Judgement", "Verdict", "Violation", "judge"]
