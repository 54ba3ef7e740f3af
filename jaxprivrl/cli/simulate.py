"""Commands that simulate: sweep, tune, compare, reproduce."""

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxprivrl import _validate
from jaxprivrl.cli.flags import (
    Command,
    EnvironmentFlags,
    GridFlags,
    MechanismFlags,
    RunFlags,
    TargetFlags,
    print_facts,
    print_json,
    print_table,
    spec_of,
    written,
)
from jaxprivrl.experiments.progress import progress_bar

if TYPE_CHECKING:
    from jaxprivrl.experiments.spec import Plan, SweepSpec

_BESIDE_FROM = ("from", "out", "overwrite", "dry-run", "json")


@dataclasses.dataclass(frozen=True)
class Sweep(EnvironmentFlags, GridFlags, RunFlags, MechanismFlags, Command):
    """Run a grid of seeds, epsilons and hyper-parameters; write a run folder.

    Examples:
      jaxprivrl sweep --privatizer exact --bonus-scales 0.01 --episodes 5000 --out runs/exact
      jaxprivrl sweep --learner ucb_po --epsilons 0.5 1 --grid learning_rate=0.05,0.1 --out runs/po
      jaxprivrl sweep --privatizer central_blt --releases octaves --grid bonus_scale=0.01,0.1 --out runs/octaves
      jaxprivrl sweep --mdp my.npz --privatizer local_laplace --epsilons 10 --json
      jaxprivrl sweep --from runs/po/run.json --out runs/again
    """

    learner: str = "ucb_vi"
    """Learner; `jaxprivrl list` names them."""
    metrics: tuple[str, ...] = ()
    """What the learner reports beside its plan, recorded beside the regret, as in planned_value."""
    tuned: Path | None = None
    """A TOML of `jaxprivrl tune`: bonus scale and step size, unless they are given by hand as well."""
    record_every: int | None = None
    """Keep the cumulative regret of every so many episodes; by default about 200 of them."""
    from_run: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A run.json: run what it records, bit for bit. Only --out, --overwrite, --dry-run and --json go with it."""
    out: Path | None = None
    """Run folder to write (results.nc and run.json)."""
    overwrite: bool = False
    """Replace an earlier run in --out."""
    dry_run: bool = False
    """Print runs, tiles, devices and memory, and stop."""

    def check(self, argv: list[str]) -> None:
        """Raises on flags that say what is run beside --from, which says all of it."""
        if self.from_run is None:
            return
        for word in argv:
            flag = word.partition("=")[0].replace("_", "-")
            if flag.startswith("--") and flag.removeprefix("--").removeprefix("no-") not in _BESIDE_FROM:
                raise ValueError(f"--from says all of what is run, so {flag} has no place beside it. Drop one of them.")

    def run(self) -> int:
        """Runs the sweep."""
        from jaxprivrl.experiments import folders, results
        from jaxprivrl.numerics import runtime

        runtime.configure()
        from jaxprivrl.experiments import spec as specs
        from jaxprivrl.experiments import sweep

        if self.out is not None:
            results.check_free(self.out, self.overwrite)
        out = None if self.dry_run else self.out
        with contextlib.nullcontext() if out is None else folders.Reserved(out, self.overwrite) as place:
            plan = specs.resolve(self._spec())
            if self.dry_run:
                return self._describe(plan)
            if place is not None:
                place.allocate(results.size_bound(plan))
            data = sweep.run(plan, progress_bar(f"{plan.spec.learner} x {plan.spec.privatizer}"))
            if place is not None:
                with folders.rescue(place.folder, lambda elsewhere: results.save(data, elsewhere)):
                    place.write(results.content(data))
        rows = results.summarize(data)
        if self.json:
            print_json({"summary": rows, "seconds": data.attrs["seconds"], "out": self.out and str(self.out)})
            return 0
        left_out = (
            "guarantee",
            "accounting",
            "best_regret",
            *(n for n, v in plan.axes.items() if n in _QUIET and len(v) == 1),
        )
        print_table([{k: v for k, v in row.items() if k not in left_out} for row in rows])
        for sentence in results.beside_uniform(rows, plan.spec.episodes):
            print(sentence)
        for statement in dict.fromkeys(g["statement"] for g in data.attrs["guarantees"]):
            print(f"Guarantee: {statement}")
        seconds = data.attrs["seconds"]
        print(f"Compiled in {seconds['compile']:.1f} s, ran in {seconds['run']:.1f} s." + written(self.out))
        return 0

    def _spec(self) -> "SweepSpec":
        if self.from_run is None:
            spec = spec_of(self)
            if self.tuned is None:
                return spec
            from jaxprivrl.experiments import tune

            return tune.apply(spec, self.tuned)
        from jaxprivrl.experiments.spec import SweepSpec

        if not self.from_run.is_file():
            raise ValueError(f"No file '{self.from_run}'; expected the run.json of a run folder. Pass its path.")
        try:
            recorded = json.loads(self.from_run.read_text(encoding="utf-8"))
            if not isinstance(recorded, dict) or "spec" not in recorded:
                raise ValueError("It holds no spec")
            return SweepSpec.from_json(recorded["spec"])
        except (ValueError, TypeError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"'{self.from_run}' is not a run.json of this package: {reason}. Pass another.") from error

    def _describe(self, plan: "Plan") -> int:
        from jaxprivrl.engine import run as engine

        job = plan.job
        runs, each = plan.spec.seeds * job.num_cells, engine.state_bytes(job)
        facts: dict[str, Any] = {
            "runs": runs,
            "grid_cells": job.num_cells,
            "tile_seeds": job.tile,
            "tiles": -(-plan.spec.seeds // job.tile),
            "devices": job.mesh.size,
            "state_bytes_per_run": each,
            "gpu_bytes_in_one_tile": each * runs,
        }
        print_facts(facts if self.json else {k: f"{v:,}" for k, v in facts.items()}, self.json)
        return 0


_QUIET = ("failure_prob", "error_scale")  # shown where they vary


@dataclasses.dataclass(frozen=True)
class Tune(EnvironmentFlags, GridFlags, RunFlags, TargetFlags, Command):
    """Search bonus scales and step sizes on seeds of their own; write the best to a TOML for sweep and compare.

    Examples:
      jaxprivrl tune --learners ucb_vi ucb_po --privatizers exact central_laplace --epsilons 10 --out tuned.toml
    """

    learners: tuple[str, ...] = ("ucb_vi",)
    """Learners to tune."""
    privatizers: tuple[str, ...] = ("central_laplace",)
    """Privatizers to tune each learner with."""
    seeds: int = 8
    """Number of tuning seeds."""
    seed_start: int = 1_000_000
    """First tuning seed: far above the seeds of results."""
    out: Path = Path("tuned.toml")
    """TOML file; tables of other learners and privatizers in it are kept."""

    def run(self) -> int:
        """Tunes each pair and writes the file."""
        from jaxprivrl.numerics import runtime

        runtime.configure()
        from jaxprivrl.experiments import compare, folders, results, tune
        from jaxprivrl.experiments import spec as spec_lib

        results.check_folder(self.out.parent)
        if self.out.is_dir():
            raise ValueError(f"'{self.out}' is a folder, expected a TOML file to write. Pass another --out.")
        if self.out.exists():
            tune.load(self.out)
        base = spec_of(self)
        specs = []
        for spec in compare.grid(base, self.learners, self.privatizers):
            declared = _declared(spec.learner)
            values = {name: values for name, values in tune.SEARCHED.items() if name in declared}
            own = {n: v for n, v in base.grid.items() if n not in tune.SEARCHED or n in declared}
            specs.append(spec.replace(grid={**values, **own}))
            tune.check(spec_lib.resolve(specs[-1]))
        _check_used(base, specs, self.learners)
        found = {}
        for spec in specs:
            bar = progress_bar(f"tune {spec.learner} x {spec.privatizer}")
            found[(spec.environment, spec.learner, spec.privatizer)] = tune.tune(spec, progress=bar)
        with folders.rescue(self.out, lambda elsewhere: tune.write(found, elsewhere)):
            tune.write(found, self.out)
        rows = [{"learner": k[1], "privatizer": k[2]} | v for k, v in found.items()]
        if self.json:
            print_json({"tuned": rows, "out": str(self.out)})
        else:
            searched = (name for name in tune.SEARCHED if any(name in row for row in rows))
            columns = ("learner", "privatizer", *searched, "final_regret_mean")
            print_table([{c: row.get(c) for c in columns} for row in rows])
            print(f"Wrote {self.out}.")
        return 0


@dataclasses.dataclass(frozen=True)
class Compare(EnvironmentFlags, RunFlags, TargetFlags, Command):
    """Run learners x privatizers x epsilons on the same seeds; rank them, test the differences, draw one figure.

    Examples:
      jaxprivrl compare --learners ucb_vi ucb_po --privatizers exact central_laplace --epsilons 100 --out runs/cmp
      jaxprivrl compare --learners ucb_vi pucb dp_ucb_vi --privatizers exact --tuned tuned.toml --out runs/exact
    """

    learners: tuple[str, ...] = ("ucb_vi", "ucb_po")
    """Learners."""
    privatizers: tuple[str, ...] = ("exact", "central_laplace", "local_laplace")
    """Privatizers."""
    bonus_scale: float | None = None
    """Bonus scale of every learner, also where --tuned gives another; by default 1."""
    learning_rate: float | None = None
    """Step size of the learners that have one, also where --tuned gives another; by default the paper's."""
    tuned: Path | None = None
    """A TOML of `jaxprivrl tune`."""
    out: Path | None = None
    """Folder for table, figure and run folders."""
    overwrite: bool = False
    """Replace an earlier comparison in --out."""

    def run(self) -> int:
        """Runs the comparison."""
        from jaxprivrl.numerics import runtime

        runtime.configure()
        from jaxprivrl.experiments import compare, folders, results
        from jaxprivrl.experiments import spec as spec_lib

        if self.out is not None:
            results.check_folder(self.out)
            if (self.out / "comparison.csv").exists() and not self.overwrite:
                raise ValueError(f"{self.out} already holds a comparison. Pass --overwrite or another --out.")
        base = spec_of(self)
        specs, size = [], 0
        for spec in compare.grid(base, self.learners, self.privatizers):
            declared = _declared(spec.learner)
            own = {n: v for n, v in base.grid.items() if n != "learning_rate" or n in declared}
            specs.append(compare.tuned(spec.replace(grid=own), self.tuned))
            size += results.size_bound(spec_lib.resolve(specs[-1]))
        _check_used(base, specs, self.learners)
        if self.out is not None:
            folders.check_space(self.out, size)
        rows, entries, data = compare.compare(
            specs, progress=lambda spec: progress_bar(f"{spec.learner} x {spec.privatizer}")
        )
        if self.out is not None:
            with folders.rescue(self.out, lambda elsewhere: compare.save(rows, entries, data, elsewhere)):
                compare.save(rows, entries, data, self.out)
        if self.json:
            print_json({"ranking": rows, "out": self.out and str(self.out)})
        else:
            print_table([{k: v for k, v in row.items() if k != "best_regret"} for row in rows])
            for sentence in results.beside_uniform(rows, base.episodes):
                print(sentence)
            print(
                "Mean final regret with 95 % bootstrap interval over seeds; p: paired Wilcoxon against the best, Holm."
            )
            print(written(self.out).strip())
        return 0


def _declared(learner: str) -> set[str]:
    """Names of the parameters that a learner has."""
    from jaxprivrl.experiments.spec import learners

    return {p.name for p in learners()[_validate.one_of("learner", learner, learners())].parameters}


def _check_used(base: "SweepSpec", specs: "list[SweepSpec]", learners: tuple[str, ...]) -> None:
    """Raises on a parameter that was given and that none of the learners has."""
    for name in base.grid:
        if not any(name in spec.grid for spec in specs):
            raise ValueError(f"None of {', '.join(learners)} has a {name}. Drop it.")


@dataclasses.dataclass(frozen=True)
class Reproduce(Command):
    """The paper's experiment, three ways: the released code, the paper's algorithms, and with an epsilon that holds.

    Examples:
      jaxprivrl reproduce
      jaxprivrl reproduce --variant paper --out results/figure2
    """

    variant: tuple[str, ...] = ("code", "paper", "honest")
    """Which of code, paper and honest to run."""
    out: Path = Path("results/figure2")
    """Folder for figures, tables and data; earlier ones of the same variant are replaced."""
    seeds: int = 20
    """Seeds of the figures."""
    episodes: int = 20_000
    """Episodes of the code and paper variants."""

    def run(self) -> int:
        """Runs the variants."""
        from jaxprivrl.numerics import runtime

        runtime.configure()
        from jaxprivrl.experiments import reproduce, results

        results.check_folder(self.out)
        for name in self.variant:
            _validate.one_of("variant", name, reproduce.VARIANTS)
        if not self.variant:
            raise ValueError("Expected --variant to name at least one of code, paper and honest. Leave it out for all.")
        _validate.positive_int("seeds", self.seeds)
        _validate.positive_int("episodes", self.episodes)
        start = time.monotonic()
        rows, verdicts = reproduce.main(self.variant, self.out, self.seeds, self.episodes)
        seconds = time.monotonic() - start
        if self.json:
            summary = reproduce.counts(verdicts)
            print_json(
                {"summary": summary, "table": rows, "claims": verdicts, "seconds": seconds, "out": str(self.out)}
            )
        else:
            print("\n".join(reproduce.headline(rows, verdicts, self.out, seconds)))
        return 0
