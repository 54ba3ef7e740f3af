"""Writes the tables of the README that list what the registries hold, so that no list of names is kept by hand.

python docs/readme_tables.py             rewrites the tables between the markers of README.md
python docs/readme_tables.py --check     exit code 1 if they are not as the registries say
"""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"
_GUARANTEE = {True: "pure ε, or (ε, δ)", False: "(ε, δ)"}


def home_of(obj: Any, package: str) -> str:
    """File of the package in which an object is defined, as `folder/file.py`: the one that does not import it."""
    parent = importlib.import_module(package)
    for info in pkgutil.iter_modules(parent.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        if any(value is obj for value in vars(module).values()):
            return f"{package.split('.')[-1]}/{info.name}.py"
    raise LookupError(f"{obj.name} is in no module of {package}")


def learners() -> list[str]:
    """A row for each learner."""
    from jaxprivrl.learners import LEARNERS

    head = "| learner | what it is | regret bound (JDP; LDP) | trust model in its paper | paper | file |"
    rows = [
        f"| `{x.name}` | {x.summary} | {x.bound} | {x.trust} | {x.paper} | `{home_of(x, 'jaxprivrl.learners')}` |"
        for x in LEARNERS.values()
    ]
    return [head, "|---|---|---|---|---|---|", *rows]


def privatizers() -> list[str]:
    """A row for each privatizer."""
    from jaxprivrl.privatizers import PRIVATIZERS

    rows = []
    for x in PRIVATIZERS.values():
        guarantee = "none" if not x.private else _GUARANTEE[x.law.pure and x.target == "pure"]
        rows.append(f"| `{x.name}` | {x.trust} | {guarantee} | {x.noise} | `{home_of(x, 'jaxprivrl.privatizers')}` |")
    head = "| privatizer | trust model | guarantee | noise on a count after release k (local: user k) | file |"
    return [head, "|---|---|---|---|---|", *rows]


def schedules() -> list[str]:
    """A row for each kind of schedule."""
    from jaxprivrl.schedules import SCHEDULES

    rows = []
    for x in SCHEDULES.values():
        told = "; ".join(f"`{p.name}={p.default}` {p.meaning}" for p in x.parameters)
        rows.append(f"| `{x.name}` | {x.summary} | {told} |")
    return ["| schedule | releases | parameters |", "|---|---|---|", *rows]


def environments() -> list[str]:
    """A row for each environment."""
    from jaxprivrl.environments import ENVIRONMENTS

    rows = []
    for x in ENVIRONMENTS.values():
        told = ", ".join(f"`{p.name}`" for p in x.parameters)
        rows.append(f"| `{x.name}` | {x.summary} | {told} |")
    return ["| environment | what it is | parameters |", "|---|---|---|", *rows]


TABLES = {"learners": learners, "privatizers": privatizers, "schedules": schedules, "environments": environments}


def rewritten(text: str) -> str:
    """The README with its tables made anew."""
    for name, table in TABLES.items():
        start, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        if start not in text:
            raise LookupError(f"README.md has no marker '{start.strip()}'")
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = before + start + "\n".join(table()) + "\n" + end + after
    return text


def main(argv: list[str] | None = None) -> int:
    """Writes or checks the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    text = README.read_text(encoding="utf-8")
    wanted = rewritten(text)
    if args.check:
        return int(text != wanted)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
