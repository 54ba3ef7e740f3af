"""Operations research: stock ordered for random demand, and a queue served at a chosen speed."""

import math

import numpy as np

from jaxprivrl.environments.base import Environment, Grid, Table, rescale
from jaxprivrl.parameters import Parameter, at_least, between

_amount = at_least(0, "Pass an amount of money.")


def _inventory(
    horizon: int | None, capacity: int, demand: float, price: float, unit: float, fixed: float, holding: float
) -> Table:
    """Order a units, sell up to the demand D ~ Poisson(demand), keep the rest.

    With stock x the order is q = min(a, capacity - x), arrives at once and is paid; x' = max(x + q - D, 0). A step
    pays price * min(x + q, D) - fixed [q > 0] - unit * q - holding * (x + q). The store starts empty, leftovers are
    worth nothing.

    Reference: Puterman, Markov Decision Processes, 1994, section 3.2.
    """
    M = capacity
    stock = np.arange(M + 1)
    mass = np.array([math.exp(d * math.log(demand) - demand - math.lgamma(d + 1)) for d in range(M)])
    rewards, P = np.zeros((1, M + 1, M + 1)), np.zeros((1, M + 1, M + 1, M + 1))
    for x in stock:
        for a in stock:
            q = min(a, M - x)
            y = x + q
            left = y - np.arange(y + 1)  # after a demand of 0, ..., y - 1, and of y or more
            chance = np.append(mass[:y], max(1.0 - mass[:y].sum(), 0.0))
            P[0, x, a, left] = chance
            sold = chance @ (y - left)
            rewards[0, x, a] = price * sold - fixed * (q > 0) - unit * q - holding * y
    worst = -(fixed + unit * M + holding * M)
    costs, native = rescale(rewards, best=price * M, worst=worst)
    actions = tuple(f"order {a}" for a in stock)
    return Table(horizon or 20, costs, P, 0, native, (), P > 0, Grid(1, M + 1, stock), actions)


INVENTORY = Environment(
    "inventory",
    "A store orders stock for random demand; orders and storage cost money, sales earn it.",
    (
        Parameter("capacity", 6, "most units in store", at_least(1, "The store needs room for one unit.")),
        Parameter("demand", 3.0, "mean demand of a step", between(0.01, 100, "Pass a mean number of units.")),
        Parameter("price", 8.0, "earned per unit sold", between(0.01, math.inf, "A sale must earn something.")),
        Parameter("unit", 2.0, "paid per unit ordered", _amount),
        Parameter("fixed", 4.0, "paid per order", _amount),
        Parameter("holding", 1.0, "paid per unit in store and step", _amount),
    ),
    _inventory,
)


def _queue(
    horizon: int | None, capacity: int, arrival: float, slow: float, fast: float, effort: float, loss: float
) -> Table:
    """One server, slow (action 0) or fast (action 1).

    In a step the first of x > 0 customers leaves with probability slow or fast, then one arrives with probability
    `arrival`; who arrives at a full queue is lost. A step costs x, and effort if fast, and loss for a lost customer.

    Reference: control of service rates, Puterman, Markov Decision Processes, 1994, section 3.7.
    """
    if fast < slow:
        raise ValueError(f"Expected fast={fast:g} >= slow={slow:g}. Swap the two speeds.")
    M = capacity
    lengths = np.arange(M + 1)
    P, payoffs = np.zeros((1, M + 1, 2, M + 1)), np.zeros((1, M + 1, 2))
    for x in lengths:
        for a, speed in enumerate((slow, fast)):
            served = speed if x > 0 else 0.0
            for gone, p in ((0, 1 - served), (1, served)):
                for come, q in ((0, 1 - arrival), (1, arrival)):
                    rest = x - gone + come
                    P[0, x, a, np.clip(rest, 0, M)] += p * q
                    payoffs[0, x, a] += p * q * loss * (rest > M)
            payoffs[0, x, a] += x + effort * a
    costs, native = rescale(payoffs, best=0.0, worst=M + effort + loss)
    return Table(horizon or 20, costs, P, 0, native, (), P > 0, Grid(1, M + 1, lengths), ("slow", "fast"))


_chance = between(0, 1, "Pass a probability.")

QUEUE = Environment(
    "queue",
    "A queue whose server may work fast at a price; waiting and lost customers cost.",
    (
        Parameter("capacity", 9, "most customers in the queue", at_least(1, "The queue needs a place.")),
        Parameter("arrival", 0.5, "probability that a customer comes", _chance),
        Parameter("slow", 0.35, "probability that slow service is done", _chance),
        Parameter("fast", 0.7, "probability that fast service is done", _chance),
        Parameter("effort", 2.0, "cost of a step of fast service", _amount),
        Parameter("loss", 5.0, "cost of a customer turned away", _amount),
    ),
    _queue,
)
