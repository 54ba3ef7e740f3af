"""Checks of user input: one wording for every error (value, expectation, remedy)."""

import difflib
import math
from collections.abc import Iterable


def one_of(kind: str, name: str, choices: Iterable[str]) -> str:
    """Returns `name` if it is one of `choices`, else raises with the nearest choice."""
    names = sorted(choices)
    if name in names:
        return name
    near = nearest(name, names)
    hint = f" Did you mean '{near}'?" if near else ""
    raise ValueError(f"Unknown {kind} '{name}'.{hint} Available: {', '.join(names) or 'none'}.")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that looks most like `name`, if any does."""
    return next(iter(difflib.get_close_matches(name, list(choices), n=1, cutoff=0.4)), None)


def epsilon(value: float) -> float:
    """Returns `value` if it is a privacy level: positive, infinity allowed."""
    if math.isnan(value) or value <= 0:
        raise ValueError(f"Expected epsilon={value} > 0. Use epsilon=inf for no privacy.")
    return float(value)


def positive_int(name: str, value: int, remedy: str = "") -> int:
    """Returns `value` if it is a whole number of at least one."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        remedy = remedy or f"Pass a whole number for {name}."
        raise ValueError(f"Expected {name}={value} >= 1. {remedy}")
    return int(value)


def finite_at_least(name: str, value: float, low: float, remedy: str) -> float:
    """Returns `value` if it is finite and not below `low`."""
    if not math.isfinite(value) or value < low:
        raise ValueError(f"Expected {name}={value} to be finite and >= {low:g}. {remedy}")
    return float(value)


def probability(name: str, value: float) -> float:
    """Returns `value` if it lies strictly between zero and one."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"Expected 0 < {name}={value} < 1. Pass a probability such as {name}=0.1.")
    return float(value)
