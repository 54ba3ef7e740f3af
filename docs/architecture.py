"""Draws the architecture from the real import graph: folders of the package, and which imports which.

python docs/architecture.py                    writes docs/architecture.svg
python docs/architecture.py --out other.png
"""

import argparse
import ast
import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "jaxprivrl"
# Top to bottom: a folder imports only from those above it. `numerics` holds what JAX programs stand on; it is above
# `mdp` because learners, privatizers and the engine all use it.
LAYERS = (
    ("_validate",),
    ("parameters", "numerics"),
    ("schedules", "problem"),
    ("mdp",),
    ("environments", "privacy"),
    ("privatizers",),
    ("learners",),
    ("engine",),
    ("audit", "published"),
    ("experiments",),
    ("cli",),
)
ORDER = ("_validate", "parameters", "schedules", "problem", "numerics", "mdp", "environments", "privacy",
         "privatizers", "learners", "engine", "audit", "published", "experiments", "cli")  # fmt: skip
ABOUT = {
    "parameters": "declared parameters",
    "schedules": "when releases are made",
    "problem": "the public facts",
    "numerics": "batch axes, random numbers",
    "mdp": "MDP, counts, values, regret",
    "environments": "problems to learn",
    "privacy": "reports, laws, accounting",
    "privatizers": "one file per mechanism",
    "learners": "one file per learner",
    "engine": "users one by one, many runs at once",
    "audit": "attacks, lower bounds on ε",
    "published": "the authors' released code",
    "experiments": "specs, sweeps, results, plots",
    "cli": "one file per command group",
}


def part_of(module: str) -> str:
    """Folder, or module at the top, that a dotted name of the package belongs to."""
    return module.split(".")[1] if "." in module else "jaxprivrl"


def imports(package: Path = PACKAGE) -> list[tuple[str, str, int]]:
    """(importing module, imported module of the package, line) of every import, lazy and type-checking ones too."""
    modules = {".".join(p.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): p
               for p in package.rglob("*.py")}  # fmt: skip
    found = []
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                whole = f"{node.module}"
                targets = [f"{whole}.{a.name}" if f"{whole}.{a.name}" in modules else whole for a in node.names]
            else:
                continue
            found += [(name, t, node.lineno) for t in targets if t.split(".")[0] == package.name]
    return found


def upward(edges: list[tuple[str, str, int]]) -> list[str]:
    """Imports that point from a folder to one that is not above it."""
    place = {name: i for i, name in enumerate(ORDER)}
    wrong = []
    for source, target, line in edges:
        a, b = part_of(source), part_of(target)
        if a == b or a in ("jaxprivrl", "__main__") or b == "jaxprivrl":
            continue
        if a not in place or b not in place or place[b] > place[a]:
            wrong.append(f"{source}:{line} imports {target}")
    return wrong


def reduced(pairs: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The pairs that do not follow from others: an arrow is left out where a longer way leads to the same folder."""
    nodes = {x for pair in pairs for x in pair}

    def reaches(a: str, b: str, without: tuple[str, str]) -> bool:
        seen, todo = {a}, [a]
        while todo:
            x = todo.pop()
            for y in nodes - seen:
                if (x, y) in pairs and (x, y) != without:
                    seen.add(y)
                    todo.append(y)
        return b in seen

    return {pair: n for pair, n in pairs.items() if pair[0] != pair[1] and not reaches(*pair, without=pair)}


def draw(path: Path) -> None:
    """Boxes in layers, an arrow for each pair of folders that does not follow from others."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    known = {name for row in LAYERS for name in row if name in ABOUT}
    pairs = Counter((part_of(s), part_of(t)) for s, t, _ in imports() if {part_of(s), part_of(t)} <= known)
    fig, ax = plt.subplots(figsize=(9, 8.5))
    rows = [row for row in LAYERS if row != ("_validate",)]
    where = {}
    for i, row in enumerate(rows):
        for j, name in enumerate(row):
            x = 0.5 if len(row) == 1 else 0.27 + 0.46 * j
            where[name] = (x, 1 - (i + 0.5) / len(rows))
    for (a, b), n in reduced(pairs).items():
        if a != b and a in where and b in where:
            bend = 0.25 if abs(where[a][0] - where[b][0]) < 0.1 and where[b][1] - where[a][1] > 0.15 else 0.0
            ax.annotate(
                "", where[b], where[a], zorder=1,
                arrowprops={"arrowstyle": "-|>", "color": "0.45", "linewidth": 0.8 + 0.08 * min(n, 12),
                            "shrinkA": 12, "shrinkB": 17, "connectionstyle": f"arc3,rad={bend}"},
            )  # fmt: skip
    for name, (x, y) in where.items():
        ax.text(
            x, y, f"{name}\n{ABOUT[name]}", ha="center", va="center", fontsize=9, zorder=2, linespacing=1.3,
            bbox={"boxstyle": "round,pad=0.45", "facecolor": "#EAF2F8", "edgecolor": "#0072B2"},
        )  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")
    ax.set_title("An arrow points to what a folder imports, always upward; what follows from others is left out",
                 fontsize=10)  # fmt: skip
    fig.savefig(path, bbox_inches="tight", dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(argv: list[str] | None = None) -> int:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".svg"))
    args = parser.parse_args(argv)
    draw(args.out)
    print(f"Wrote {args.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
