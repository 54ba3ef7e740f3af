"""Commands that simulate: sweep, tune, compare, reproduce."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxprivrl import _validate
from jaxprivrl.cli.flags import (
    EnvironmentFlags,
    Many,
    MechanismFlags,
    RunFlags,
    print_json,
    print_table,
    spec_of,
    written,
)
from jaxprivrl.progress import progress_bar


@dataclasses.dataclass(frozen=True)
class Sweep(EnvironmentFlags, RunFlags, MechanismFlags):
    """Run a grid of seeds, epsilons and hyper-parameters; write a run folder.

    Examples:
      jaxprivrl sweep --privatizer exact --bonus-scales 0.01 --episodes 5000 --out runs/exact
      jaxprivrl sweep --learner ucb_po --epsilons 0.5 1 --seeds 20 --learning-rates 0.05 0.1 --out runs/po
      jaxprivrl sweep --mdp my.npz --privatizer local_laplace --epsilons 10 --json
    """

    learner: str = "ucb_vi"
    """Learner; `jaxprivrl list` names them."""
    bonus_scales: Many = (1.0,)
    """Multipliers of the whole exploration bonus."""
    learning_rates: Many | None = None
    """Step sizes of mirror descent; by default sqrt(2 ln A / (H^2 K))."""
    tuned: Path | None = None
    """A TOML of `jaxprivrl tune`: bonus scale and step size of this environment, learner and privatizer."""
    record_every: int | None = None
    """Keep the cumulative regret of every so many episodes; by default about 200 of them."""
    out: Path | None = None
    """Run folder to write (results.nc and run.json)."""
    overwrite: bool = False
    """Replace an earlier run in --out."""
    dry_run: bool = False
    """Print runs, tiles, devices and memory, and stop."""
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Runs the sweep."""
        from jaxprivrl import results, runtime

        runtime.configure()
        from jaxprivrl import sweep as engine

        if self.out is not None:
            results.check_free(self.out, self.overwrite)
        mdp = self.build()
        spec = spec_of(self, environment=self.label)
        if self.tuned is not None:
            from jaxprivrl import tuning

            spec = tuning.apply(spec, self.tuned)
        plan = engine.resolve(spec, mdp)
        if self.dry_run:
            return self._describe(engine, plan)
        bar = progress_bar(f"{self.learner} x {self.privatizer}")
        data = results.to_dataset(plan, *engine.run(plan, bar))
        if self.out is not None:
            results.save(data, self.out, overwrite=self.overwrite)
        rows = results.summarize(data)
        if self.json:
            print_json({"summary": rows, "seconds": data.attrs["seconds"], "out": self.out and str(self.out)})
            return 0
        columns = ("epsilon", "bonus_scale", "learning_rate", "final_regret_mean", "final_regret_std",
                   "last_tenth_regret_per_episode")  # fmt: skip
        print_table([{c: row[c] for c in columns} for row in rows])
        for statement in dict.fromkeys(g["statement"] for g in data.attrs["guarantees"]):
            print(f"Guarantee: {statement}")
        seconds = data.attrs["seconds"]
        print(f"Compiled in {seconds['compile']:.1f} s, ran in {seconds['run']:.1f} s." + written(self.out))
        return 0

    def _describe(self, engine: Any, plan: Any) -> int:
        runs = self.seeds * len(plan.grid)
        each = engine.state_bytes(plan)
        facts = {
            "runs": runs,
            "grid_cells": len(plan.grid),
            "tile_seeds": plan.tile,
            "tiles": -(-self.seeds // plan.tile),
            "devices": plan.mesh.size,
            "state_bytes_per_run": each,
            "gpu_bytes_in_one_tile": each * runs,
        }
        if self.json:
            print_json(facts)
        else:
            print_table([{"quantity": k, "value": f"{v:,}"} for k, v in facts.items()])
        return 0


@dataclasses.dataclass(frozen=True)
class Tune(EnvironmentFlags, RunFlags, MechanismFlags):
    """Search bonus scales and step sizes on seeds of their own; write the best to a TOML for sweep and compare.

    Examples:
      jaxprivrl tune --learners ucb_vi ucb_po --privatizers exact central_laplace --epsilons 10 --out tuned.toml
    """

    learners: tuple[str, ...] = ("ucb_vi",)
    """Learners to tune."""
    privatizers: tuple[str, ...] = ()
    """Privatizers to tune each learner with; by default --privatizer."""
    bonus_scales: Many | None = None
    """Bonus scales to try; by default 1e-4 to 0.1."""
    learning_rates: Many | None = None
    """Step sizes to try, where the learner has one; by default 0.01 to 1."""
    seeds: int = 8
    """Number of tuning seeds."""
    seed_start: int = 1_000_000
    """First tuning seed: far above the seeds of results."""
    out: Path = Path("tuned.toml")
    """TOML file; tables of other learners and privatizers in it are kept."""
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Tunes each pair and writes the file."""
        from jaxprivrl import runtime

        runtime.configure()
        from jaxprivrl import compare, results, tuning

        results.check_folder(self.out.parent)
        if self.out.exists():
            tuning.load(self.out)
        mdp = self.build()
        base = spec_of(
            self, environment=self.label, bonus_scales=self.bonus_scales or tuning.BONUS_SCALES, learning_rates=None
        )
        specs = []
        for spec in compare.grid(base, self.learners, self.privatizers or (self.privatizer,)):
            if spec.learner in tuning.USES_LEARNING_RATE:
                spec = dataclasses.replace(spec, learning_rates=self.learning_rates or tuning.LEARNING_RATES)
            compare.check(spec, mdp)
            specs.append(spec)
        found = {}
        for spec in specs:
            bar = progress_bar(f"tune {spec.learner} x {spec.privatizer}")
            found[(spec.environment, spec.learner, spec.privatizer)] = tuning.tune(spec, mdp, bar)
        tuning.write(found, self.out)
        rows = [{"learner": k[1], "privatizer": k[2]} | v for k, v in found.items()]
        if self.json:
            print_json({"tuned": rows, "out": str(self.out)})
        else:
            columns = ("learner", "privatizer", "bonus_scale", "learning_rate", "final_regret_mean")
            print_table([{c: row[c] for c in columns} for row in rows])
            print(f"Wrote {self.out}.")
        return 0


@dataclasses.dataclass(frozen=True)
class Compare(EnvironmentFlags, RunFlags, MechanismFlags):
    """Run learners x privatizers x epsilons on the same seeds; rank them, test the differences, draw one figure.

    Examples:
      jaxprivrl compare --learners ucb_vi ucb_po --privatizers exact central_laplace --epsilons 100 --out runs/cmp
      jaxprivrl compare --learners ucb_vi pucb dp_ucb_vi --privatizers exact --tuned tuned.toml --out runs/exact
    """

    learners: tuple[str, ...] = ("ucb_vi", "ucb_po")
    """Learners."""
    privatizers: tuple[str, ...] = ("exact", "central_laplace", "local_laplace")
    """Privatizers."""
    bonus_scale: float = 1.0
    """Bonus scale of every learner, unless --tuned is given."""
    learning_rate: float | None = None
    """Step size, unless --tuned is given; by default the paper's."""
    tuned: Path | None = None
    """A TOML of `jaxprivrl tune`."""
    out: Path | None = None
    """Folder for table, figure and run folders."""
    overwrite: bool = False
    """Replace an earlier comparison in --out."""
    json: bool = False
    """Print one JSON object on stdout and nothing else."""

    def run(self) -> int:
        """Runs the comparison."""
        from jaxprivrl import runtime

        runtime.configure()
        from jaxprivrl import compare, results

        if self.out is not None:
            results.check_folder(self.out)
            if (self.out / "comparison.csv").exists() and not self.overwrite:
                raise ValueError(f"{self.out} already holds a comparison. Pass --overwrite or another --out.")
        mdp = self.build()
        rate = None if self.learning_rate is None else (self.learning_rate,)
        base = spec_of(self, environment=self.label, bonus_scales=(self.bonus_scale,), learning_rates=rate)
        specs = [compare.tuned(spec, self.tuned) for spec in compare.grid(base, self.learners, self.privatizers)]
        for spec in specs:
            compare.check(spec, mdp)
        rows, entries, data = compare.compare(
            specs, mdp, progress=lambda spec: progress_bar(f"{spec.learner} x {spec.privatizer}")
        )
        if self.out is not None:
            compare.save(rows, entries, data, self.out)
        if self.json:
            print_json({"ranking": rows, "out": self.out and str(self.out)})
        else:
            print_table(rows)
            print(
                "Mean final regret with 95 % bootstrap interval over seeds; p: paired Wilcoxon against the best, Holm."
            )
            print(written(self.out).strip())
        return 0


@dataclasses.dataclass(frozen=True)
class Reproduce:
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
        from jaxprivrl import runtime

        runtime.configure()
        from jaxprivrl import reproduce, results

        results.check_folder(self.out)
        for name in self.variant:
            _validate.one_of("variant", name, reproduce.VARIANTS)
        _validate.positive_int("seeds", self.seeds)
        _validate.positive_int("episodes", self.episodes)
        reproduce.main(self.variant, self.out, self.seeds, self.episodes)
        return 0
