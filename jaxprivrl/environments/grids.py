"""Grid worlds: walls, slips and a goal that ends the episode; four rooms is one of them."""

import numpy as np

from jaxprivrl.environments.base import Environment, Grid, Table, rescale
from jaxprivrl.parameters import Parameter, at_least, between

ACTIONS = ("up", "down", "left", "right")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
Cell = tuple[int, int]

FOUR_ROOMS = """\
.....#.....
.....#.....
...........
.....#.....
.....#.....
#.####.....
.....###.##
.....#.....
.....#.....
...........
.....#....."""
HALLWAY = (6, 8)  # between the rooms on the right: the nearer goal of the original


def parse_cell(name: str, text: str, rows: int, columns: int) -> Cell:
    """The cell that `row.column` names, or an error."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"Expected {name}={text} to be row.column. Pass one such as {name}=0.{columns - 1}.")
    row, column = int(parts[0]), int(parts[1])
    if row >= rows or column >= columns:
        raise ValueError(f"Expected {name}={text} inside {rows} x {columns} cells. Count rows and columns from 0.")
    return row, column


def walk(horizon: int, rows: int, columns: int, walls: set[Cell], start: Cell, goal: Cell, slip: float) -> Table:
    """A walk on a grid until the goal.

    A move goes its way with probability 1 - slip and each of the three other ways with slip / 3; walls and the border
    hold. The step onto the goal pays 1 and ends the episode: the goal keeps the walker and pays nothing more.
    """
    for name, cell in (("start", start), ("goal", goal)):
        if cell in walls:
            raise ValueError(f"Expected {name}={cell[0]}.{cell[1]} to be free; it is a wall. Pass another cell.")
    if start == goal:
        raise ValueError(f"Expected start={start[0]}.{start[1]} to differ from the goal. Pass another cell.")
    cells = [(row, column) for row in range(rows) for column in range(columns) if (row, column) not in walls]
    index = {cell: s for s, cell in enumerate(cells)}
    S, A = len(cells), len(MOVES)
    P = np.zeros((1, S, A, S))
    for (row, column), s in index.items():
        for a in range(A):
            for b, (down, right) in enumerate(MOVES):
                s2 = index.get((row + down, column + right), s)
                P[0, s, a, s2] += 1 - slip if a == b else slip / (A - 1)
    end = index[goal]
    P[0, end] = np.eye(S)[end]
    rewards = P[..., end].copy()
    rewards[0, end] = 0.0
    costs, native = rescale(rewards, best=1.0, worst=0.0)
    drawn = np.array([row * columns + column for row, column in cells])
    return Table(horizon, costs, P, index[start], native, (end,), P > 0, Grid(rows, columns, drawn), ACTIONS)


def _grid_world(
    horizon: int | None, rows: int, columns: int, slip: float, walls: str, start: str, goal: str | None
) -> Table:
    blocked = {parse_cell("walls", text, rows, columns) for text in walls.split("/") if text}
    aim = (rows - 1, columns - 1) if goal is None else parse_cell("goal", goal, rows, columns)
    return walk(horizon or 20, rows, columns, blocked, parse_cell("start", start, rows, columns), aim, slip)


def _four_rooms(horizon: int | None, slip: float, start: str, goal: str) -> Table:
    """Four rooms joined by four hallways, 104 cells; with the usual slip of 1/3 a move succeeds with probability 2/3.

    Reference: Sutton, Precup and Singh, Between MDPs and semi-MDPs, Artificial Intelligence 1999, section 3; the goal
    is their hallway goal G1, the start is fixed here.
    """
    plan = FOUR_ROOMS.split("\n")
    rows, columns = len(plan), len(plan[0])
    walls = {(i, j) for i in range(rows) for j in range(columns) if plan[i][j] == "#"}
    first, aim = parse_cell("start", start, rows, columns), parse_cell("goal", goal, rows, columns)
    return walk(horizon or 40, rows, columns, walls, first, aim, slip)


_slip = between(0, 1, "Pass a probability.")

GRID_WORLD = Environment(
    "grid_world",
    "A walk on a grid with walls and slips; the step onto the goal pays 1 and ends the episode.",
    (
        Parameter("rows", 5, "rows", at_least(1, "A grid has at least one row.")),
        Parameter("columns", 5, "columns", at_least(2, "A start and a goal need two cells.")),
        Parameter("slip", 0.1, "probability of going another way than meant", _slip),
        Parameter("walls", "", "cells that block, row.column/row.column/... from 0"),
        Parameter("start", "0.0", "first cell, row.column"),
        Parameter("goal", None, "cell that pays and ends, row.column; the bottom right one by default", kind=str),
    ),
    _grid_world,
)

FOUR_ROOMS_WORLD = Environment(
    "four_rooms",
    "Four rooms joined by hallways; the step onto the goal pays 1 and ends the episode.",
    (
        Parameter("slip", 1 / 3, "probability of going another way than meant", _slip),
        Parameter("start", "0.0", "first cell, row.column"),
        Parameter("goal", f"{HALLWAY[0]}.{HALLWAY[1]}", "cell that pays and ends, row.column"),
    ),
    _four_rooms,
)
