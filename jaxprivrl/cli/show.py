"""Commands that show what is there: plot, list."""

import dataclasses
from pathlib import Path
from typing import Any

import tyro

from jaxprivrl.cli.flags import print_json


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw cumulative regret of run folders, with accounted guarantees in the legend.

    Examples:
      jaxprivrl plot runs/a runs/b --out regret.png
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("regret.png")
    """File to write; its ending chooses the format."""

    def run(self) -> int:
        """Draws the figure."""
        from jaxprivrl import plotting, results

        if self.out.suffix not in (".png", ".pdf", ".svg"):
            raise ValueError(f"Expected --out {self.out} to end in .png, .pdf or .svg. Rename it.")
        if self.out.is_dir():
            raise ValueError(f"{self.out} is a folder, expected a file to write. Pass another --out.")
        results.check_folder(self.out.parent)
        data = [results.load(folder) for folder in self.runs]
        if not data:
            raise ValueError("Expected at least one run folder. Make one with 'jaxprivrl sweep --out'.")
        axes = plotting.regret(data)
        plotting.save(axes.figure, self.out)
        print(f"Wrote {self.out}.")
        return 0


@dataclasses.dataclass(frozen=True)
class List:
    """Names of environments, learners, privatizers, calibrations and post-processings.

    Examples:
      jaxprivrl list --json
    """

    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Prints the registries."""
        from jaxprivrl import accounting, published
        from jaxprivrl.environments import ENVIRONMENTS
        from jaxprivrl.learners import LEARNERS
        from jaxprivrl.postprocess import POSTPROCESSORS
        from jaxprivrl.privatizers import PRIVATIZERS

        def line(factory: Any) -> str:
            return (factory.__doc__ or "").strip().split("\n")[0]

        listing: dict[str, Any] = {
            "environments": {name: line(f) for name, f in ENVIRONMENTS.items()},
            "learners": {name: line(f) for name, f in LEARNERS.items()},
            "privatizers": {
                name: {"description": line(f), "guarantee": accounting.MECHANISMS[name].trust}
                for name, f in PRIVATIZERS.items()
            },
            "published_learners": {name: line(f) for name, f in published.LEARNERS.items()},
            "published_privatizers": {
                name: {"description": line(f), "guarantee": "none"} for name, f in published.PRIVATIZERS.items()
            },
            "postprocess": {name: line(f) for name, f in POSTPROCESSORS.items()},
            "calibrations": list(accounting.CALIBRATIONS),
        }
        if self.json:
            print_json(listing)
            return 0
        for kind, entries in listing.items():
            print(f"{kind}:")
            for name in entries:
                text = entries[name] if isinstance(entries, dict) else ""
                if isinstance(text, dict):
                    text = f"[{text['guarantee']}] {text['description']}"
                print(f"  {name:<18} {text}".rstrip())
        return 0
