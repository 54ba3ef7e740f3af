"""Commands that show what is there: plot, list."""

import dataclasses
from pathlib import Path
from typing import Any

import tyro

from jaxprivrl.cli.flags import Command, print_json


@dataclasses.dataclass(frozen=True)
class Plot(Command):
    """Draw cumulative regret of run folders: guarantees and what differs in the legend, a panel for each MDP.

    Examples:
      jaxprivrl plot runs/a runs/b --out regret.png
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders."""
    out: Path = Path("regret.png")
    """File to write; its ending chooses the format."""

    def run(self) -> int:
        """Draws the figure."""
        from jaxprivrl.experiments import plots, results

        plots.check_file(self.out)
        data = [results.load(folder) for folder in self.runs]
        if not data:
            raise ValueError("Expected at least one run folder. Make one with 'jaxprivrl sweep --out'.")
        axes = plots.regret(data)
        plots.save(axes.figure, self.out)
        if self.json:
            print_json({"out": str(self.out)})
        else:
            print(f"Wrote {self.out}.")
        return 0


@dataclasses.dataclass(frozen=True)
class List(Command):
    """Names of environments, learners, privatizers, calibrations and post-processings.

    Examples:
      jaxprivrl list --json
    """

    def run(self) -> int:
        """Prints the registries."""
        from jaxprivrl.environments import ENVIRONMENTS
        from jaxprivrl.learners import LEARNERS, POSTPROCESSORS
        from jaxprivrl.parameters import Parameter
        from jaxprivrl.privacy.privatizer import CALIBRATIONS
        from jaxprivrl.privatizers import PRIVATIZERS
        from jaxprivrl.published import experiment as published
        from jaxprivrl.schedules import SCHEDULES

        def declared(parameters: tuple[Parameter, ...]) -> dict[str, str]:
            return {p.name: p.meaning for p in parameters}

        def described(registry: Any) -> dict[str, Any]:
            return {n: {"description": e.summary, "parameters": declared(e.parameters)} for n, e in registry.items()}

        def trusted(registry: Any) -> dict[str, Any]:
            return {n: {"description": p.summary, "guarantee": p.trust} for n, p in registry.items()}

        listing: dict[str, Any] = {
            "environments": described(ENVIRONMENTS),
            "schedules": described(SCHEDULES),
            "learners": described(LEARNERS),
            "privatizers": trusted(PRIVATIZERS),
            "published_learners": described(published.LEARNERS),
            "published_privatizers": trusted(published.PRIVATIZERS),
            "postprocess": {n: (f.__doc__ or "").strip().split("\n")[0] for n, f in POSTPROCESSORS.items()},
            "calibrations": list(CALIBRATIONS),
        }
        if self.json:
            print_json(listing)
            return 0
        for kind, entries in listing.items():
            print(f"{kind}:")
            for name in entries:
                about = entries[name] if isinstance(entries, dict) else ""
                text = about if isinstance(about, str) else about["description"]
                if isinstance(about, dict) and "guarantee" in about:
                    text = f"[{about['guarantee']}] {text}"
                print(f"  {name:<20} {text}".rstrip())
                for parameter, meaning in (about.get("parameters", {}) if isinstance(about, dict) else {}).items():
                    print(f"    {parameter}: {meaning}")
        return 0
